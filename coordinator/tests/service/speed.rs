//! What keeps answers from being slow for no reason.

use std::time::{Duration, Instant};

use cipherhop_proto::v1;

use crate::common::*;

/// With Nagle's algorithm the end of an answer waits for the client's delayed acknowledgement, 40 ms.
#[tokio::test(flavor = "multi_thread")]
async fn no_answer_waits_for_the_clients_acknowledgement() {
    let server = Server::start().await;
    new_chain("demo", 1).create(&server.owner().await).await;
    let ada = server.volunteer("ada").await;
    let mut quickest = Duration::MAX;
    for round in 0..40 {
        let asked = Instant::now();
        let given = ada.acquire(0).await.unwrap();
        // A young connection acknowledges at once.
        if round >= 25 {
            quickest = quickest.min(asked.elapsed());
        }
        let release = v1::ReleaseRequest {
            attempt_id: given.attempt_id,
            epoch: given.epoch,
        };
        ada.connection.volunteer().release(release).await.unwrap();
    }
    assert!(quickest < Duration::from_millis(35), "{quickest:?}");
}
