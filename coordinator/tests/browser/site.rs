//! Chains in every state, with volunteers who are at work, and the steps that a test in the browser asks for.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use axum::Router;
use axum::extract::{Path, State};
use axum::routing::post;
use cipherhop_proto::{ChainId, Digest, v1};
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;

use crate::common::*;

/// Steps of a hop, as the volunteers here tell them.
const STEPS: u32 = 45;

pub struct Site {
    pub server: Server,
    /// Ids of the chains by what is to be seen on them.
    pub chains: BTreeMap<&'static str, String>,
    running: Vec<(Volunteer, v1::Assignment)>,
    done: AtomicU32,
}

impl Volunteer {
    /// A hop of this chain; panics when there is none.
    async fn take(&self, chain: &[u8]) -> v1::Assignment {
        let mut request = self.acquire_request(5);
        request.chain_id = chain.to_vec();
        let answer = self.connection.volunteer().acquire(request).await.unwrap();
        match answer.into_inner().answer.unwrap() {
            v1::acquire_response::Answer::Assignment(given) => given,
            v1::acquire_response::Answer::NoWork(none) => panic!("{none:?}"),
        }
    }

    async fn finish(&self, chain: &[u8], hop: u32) {
        let given = self.take(chain).await;
        assert_eq!(given.hop, hop);
        self.hand_in(&given, &output(hop)).await.unwrap();
    }

    async fn tell(&self, given: &v1::Assignment, done: u32) {
        let left = f64::from(STEPS - done) * 2.5;
        let request = v1::SyncRequest {
            attempt_id: given.attempt_id.clone(),
            epoch: given.epoch,
            phase: v1::AttemptPhase::Computing.into(),
            progress: Some(v1::Progress {
                steps_done: done,
                steps_total: STEPS,
                step: "boot.slots_to_coefficients.2".into(),
                compute_seconds: f64::from(done) * 3.0,
                eta_low_seconds: left,
                eta_high_seconds: left * 2.0,
            }),
        };
        self.connection.volunteer().sync(request).await.unwrap();
    }
}

impl Site {
    pub async fn build() -> Site {
        let mut config = quick_config();
        // hops with a known answer are mixed in at random: here each comes once
        config.volunteers.probe_fresh_permille = 0;
        config.volunteers.probe_trusted_permille = 0;
        let server = Server::start_with(config).await;
        let owner = server.owner().await;
        let (ada, bob) = (server.volunteer("ada").await, server.volunteer("bob").await);
        let mut chains = BTreeMap::new();
        let mut made = async |what, name, hops| {
            let id = new_chain(name, hops).create(&owner).await;
            chains.insert(what, ChainId::from_slice(&id).unwrap().to_string());
            id
        };

        let finished = made("completed", "short and done", 2).await;
        complete_from(&ada, &bob, 0, 2).await;
        drop(finished);
        let stuck = made("stuck", "third time unlucky", 3).await;
        for volunteer in [&ada, &bob, &ada] {
            let given = volunteer.take(&stuck).await;
            let request = v1::FailRequest {
                attempt_id: given.attempt_id,
                epoch: given.epoch,
                kind: v1::FailKind::Compute.into(),
                detail: "the child process ended with signal 9".into(),
            };
            volunteer
                .connection
                .volunteer()
                .fail(request)
                .await
                .unwrap();
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        let verifying = made("verifying", "one more opinion", 3).await;
        ada.finish(&verifying, 0).await;
        made("ready", "waits for a volunteer", 1).await;
        use v1::ChainState::{Cancelled, Paused};
        for (what, name, state, reason) in [
            (
                "paused",
                "paused_for_maintenance_of_the_disks_in_the_second_rack",
                Paused,
                "new disks at noon",
            ),
            (
                "cancelled",
                "a/name with <b>letters</b> & signs?",
                Cancelled,
                "made twice",
            ),
        ] {
            let id = made(what, name, 2).await;
            set_state(&server, &id, state, reason).await;
        }

        let mut new = new_chain("story of a fox, 28 layers", 28);
        for hop in [1, 7, 8] {
            new.request.hops[hop as usize].archived_digest = Digest::of(&output(hop)).to_vec();
        }
        let id = new.create(&owner).await;
        chains.insert("running", ChainId::from_slice(&id).unwrap().to_string());
        for hop in 0..4 {
            ada.finish(&id, hop).await;
            if hop != 1 {
                bob.finish(&id, hop).await;
            }
        }
        publish(&owner, &id, 4).await;
        let mut running = Vec::new();
        for volunteer in [ada, bob] {
            let given = volunteer.take(&id).await;
            volunteer.tell(&given, 11).await;
            running.push((volunteer, given));
        }
        Site {
            server,
            chains,
            running,
            done: AtomicU32::new(11),
        }
    }

    /// An address that takes a step for each POST to `/NAME`; `other` is a server with its pages, that goes down and
    /// comes up again.
    pub async fn controlled(self: Arc<Site>, other: Server, pages: SocketAddr) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().route("/{step}", post(step)).with_state((
            self,
            Arc::new(Mutex::new(other)),
            pages,
        ));
        tokio::spawn(async { axum::serve(listener, router).await });
        address
    }
}

async fn step(
    State((site, other, pages)): State<(Arc<Site>, Arc<Mutex<Server>>, SocketAddr)>,
    Path(step): Path<String>,
) {
    let id = site.chains["running"].parse::<ChainId>().unwrap().to_vec();
    match step.as_str() {
        // one more step of the running hop
        "progress" => {
            let done = site.done.fetch_add(1, Ordering::Relaxed) + 1;
            for (volunteer, given) in &site.running {
                volunteer.tell(given, done).await;
            }
        }
        // the running hop's two results
        "verify" => {
            for (volunteer, given) in &site.running {
                let output = output(given.hop);
                volunteer.hand_in(given, &output).await.unwrap();
            }
        }
        "pause" => set_state(&site.server, &id, v1::ChainState::Paused, "lunch").await,
        "resume" => set_state(&site.server, &id, v1::ChainState::Active, "").await,
        "down" => other.lock().await.shutdown.cancel(),
        "up" => {
            // this future cannot move between threads, as the router's must
            let start = || Handle::current().block_on(Server::start());
            let server = spawn_blocking(start).await.unwrap();
            let listener = TcpListener::bind(pages).await.unwrap();
            server.pages_on(listener, Arc::default());
            server.volunteer("the first after the restart").await;
            *other.lock().await = server;
        }
        other => panic!("no step {other}"),
    }
}

async fn set_state(server: &Server, chain: &[u8], state: v1::ChainState, reason: &str) {
    let request = v1::SetChainStateRequest {
        chain_id: chain.to_vec(),
        state: state.into(),
        reason: reason.into(),
    };
    let admin = server.admin();
    admin.admin().set_chain_state(request).await.unwrap();
}

/// Error figures of the first hops.
async fn publish(owner: &cipherhop_proto::client::Connection, chain: &[u8], hops: u32) {
    let figure = |hop| v1::HopAccuracy {
        hop,
        max_err_over_f: 2e-5 * f64::from(hop + 1),
        worst_rel_rms: 3e-4 * f64::from(hop + 1),
    };
    let request = v1::PublishAccuracyRequest {
        chain_id: chain.to_vec(),
        hops: (0..hops).map(figure).collect(),
    };
    owner.chain().publish_accuracy(request).await.unwrap();
}
