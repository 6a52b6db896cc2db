//! The store's conformance suite: every test runs on every backend.
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "store/world.rs"]
mod world;

#[path = "store/blobs.rs"]
mod blobs;
#[path = "store/chains.rs"]
mod chains;
#[path = "store/late.rs"]
mod late;
#[path = "store/leases.rs"]
mod leases;
#[path = "store/people.rs"]
mod people;
#[path = "store/replicas.rs"]
mod replicas;
#[path = "store/restart.rs"]
mod restart;
#[path = "store/schema.rs"]
mod schema;
#[path = "store/trust.rs"]
mod trust;
#[path = "store/verification.rs"]
mod verification;

macro_rules! suite {
    ($($module:ident: $($test:ident),+ $(,)?;)+) => {
        mod memory {
            $($(
                #[tokio::test]
                async fn $test() {
                    super::$module::$test(super::world::World::memory()).await;
                }
            )+)+
        }

        mod sqlite {
            $($(
                #[tokio::test]
                async fn $test() {
                    super::$module::$test(super::world::World::sqlite().await).await;
                }
            )+)+
        }

        mod postgres {
            $($(
                #[tokio::test]
                async fn $test() {
                    if let Some(world) = super::world::World::postgres().await {
                        super::$module::$test(world).await;
                    }
                }
            )+)+
        }
    };
}

suite! {
    people:
        a_token_is_known_by_its_hash_until_it_is_revoked,
        enrolling_twice_with_one_nonce_gives_one_device_and_the_newest_token,
        only_a_living_invite_enrols,
        a_device_keeps_one_key_and_its_invites_scope,
        a_signature_is_kept_with_the_submit_it_belongs_to,
        an_audit_entry_gets_its_outcome_once,
        a_ledger_key_is_replaced_only_on_purpose,
        a_quarantined_device_gets_no_work_and_loses_its_leases,
        three_refuted_results_in_a_row_put_a_device_into_quarantine;
    blobs:
        an_upload_goes_from_reserved_to_complete_and_keeps_its_offset,
        i5_an_acknowledged_offset_never_shrinks,
        two_accounts_upload_one_digest_apart_and_one_completion_ends_both,
        completions_of_one_digest_at_once_do_not_stand_in_each_others_way,
        a_lying_size_is_refused;
    chains:
        creating_the_same_chain_again_changes_nothing,
        another_chain_under_a_known_id_or_name_is_refused,
        i3_a_chain_with_a_missing_blob_is_refused,
        a_chain_with_impossible_numbers_is_refused,
        pause_stops_new_leases_and_resume_hands_out_again,
        finished_work_is_taken_while_paused,
        cancel_ends_every_open_hop_and_attempt,
        watching_resumes_from_a_sequence_number,
        accuracy_is_kept_for_verified_hops_only,
        an_import_of_the_archive_is_all_or_nothing,
        i7_no_view_holds_an_archived_or_waiting_digest;
    leases:
        acquiring_with_one_nonce_gives_one_attempt,
        a_device_without_memory_gets_its_live_attempt_again,
        quorum_two_goes_to_two_accounts_in_parallel_and_to_no_third,
        one_account_never_gets_a_hop_twice_even_with_two_devices,
        hard_filters_name_what_lacks,
        a_wanted_range_is_kept,
        i4_a_stale_epoch_changes_nothing,
        another_device_cannot_speak_for_an_attempt,
        a_silent_lease_opens_the_hop_and_may_still_win,
        a_passed_deadline_ends_the_attempt_and_its_late_result_still_counts,
        i8_every_live_lease_is_due_some_time_and_the_reaper_knows_when,
        a_device_that_failed_is_not_the_next_one,
        the_compute_budget_makes_the_hop_stuck_with_a_reason,
        requeue_opens_a_stuck_hop_and_keeps_the_reason,
        volunteers_reopen_a_few_times_then_only_the_operator,
        release_gives_the_hop_back_unharmed,
        a_hop_that_failed_waits_before_it_is_handed_out,
        hops_that_usually_take_long_get_a_later_deadline;
    late:
        two_lone_volunteers_do_not_wait_for_each_other_for_ever,
        a_device_too_slow_for_the_deadline_is_told_before_it_claims,
        a_restarted_worker_and_the_coordinator_compare_what_they_hold;
    verification:
        two_equal_results_verify_the_hop_and_open_the_next,
        i9_a_tie_waits_for_a_third_account,
        i6_credit_comes_once_per_attempt,
        a_second_submit_with_another_digest_is_refused,
        a_submit_without_stored_bytes_asks_for_them,
        a_malformed_output_is_refuted_with_its_reason,
        a_size_that_is_not_the_chains_is_refused,
        one_result_equal_to_the_archive_verifies_the_hop,
        a_result_against_the_archive_reopens_the_hop_and_lowers_trust,
        three_accounts_against_the_archive_make_it_suspect,
        i10_too_many_disagreements_make_the_hop_stuck_with_a_reason,
        a_late_result_after_verification_is_unneeded_or_wrong,
        i1_i2_a_chain_runs_to_its_end_with_one_archive_row_per_hop,
        importing_the_digest_judges_waiting_results;
    trust:
        a_trusted_device_mostly_passes_alone_and_one_mismatch_ends_that,
        what_a_device_passed_alone_is_run_again_when_it_loses_its_trust,
        a_refuted_recheck_begins_a_new_generation,
        known_answer_hops_look_like_work_and_tell_honest_devices_from_others,
        a_dropped_archived_digest_lets_the_refuted_accounts_decide,
        an_operator_invalidates_a_verified_hop,
        i9_a_referee_refutes_one_result_and_leaves_the_other_standing;
    restart:
        i5_everything_acknowledged_is_there_after_a_restart,
        i3_a_transaction_that_fails_leaves_nothing,
        events_are_written_with_the_change_they_tell_of,
        text_with_a_nul_is_kept_without_it,
        many_claims_at_once_hand_no_hop_to_two_who_should_not_have_it;
}

mod sql_only {
    #[tokio::test]
    async fn i1_i2_i3_i6_i10_the_schema_itself_refuses_broken_rows_sqlite() {
        super::restart::sqlite_refuses_broken_rows().await;
    }

    #[tokio::test]
    async fn i1_i2_i3_i6_i10_the_schema_itself_refuses_broken_rows_postgres() {
        super::restart::postgres_refuses_broken_rows().await;
    }

    #[tokio::test]
    async fn migrating_twice_changes_nothing() {
        super::restart::migrating_twice_changes_nothing().await;
    }
}
