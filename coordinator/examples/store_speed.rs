//! Measures the SQLite store on this machine: claims, heartbeats and verified hops per second.
//! `cargo run --release -p cipherhop-coordinator --example store_speed`
#![allow(clippy::unwrap_used)]

#[path = "../tests/store/world.rs"]
#[allow(dead_code, missing_docs)]
mod world;

use std::time::{Duration, Instant};

use cipherhop_coordinator::domain::attempt::{Phase, Progress};
use world::{World, holder};

const CHAINS: usize = 50;
const HEARTBEATS: u32 = 2000;

fn report(what: &str, times: &mut [Duration]) {
    times.sort_unstable();
    let total: Duration = times.iter().sum();
    let rate = times.len() as f64 / total.as_secs_f64();
    let p95 = times[times.len() * 95 / 100];
    println!(
        "{what:<12} {rate:>8.0}/s  p95 {:>7.2} ms",
        p95.as_secs_f64() * 1e3
    );
}

#[tokio::main]
async fn main() {
    let mut world = World::sqlite().await;
    let crowd = world.crowd(2).await;
    for number in 0..CHAINS {
        let mut new = world.new_chain(&format!("chain {number}"), 4, &[]);
        world.prepare(&mut new).await;
        world.store.create_chain(new, world.now).await.unwrap();
    }
    let (mut claims, mut submits, mut beats) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..CHAINS * 4 {
        let mut attempts = Vec::new();
        for device in &crowd {
            let request = world.request(*device);
            let start = Instant::now();
            attempts.push(world.acquire(request).await.unwrap().attempt);
            claims.push(start.elapsed());
        }
        if round == 0 {
            let live = holder(&attempts[0]);
            for step in 0..HEARTBEATS {
                let progress = Progress {
                    steps_done: step,
                    ..Progress::default()
                };
                let start = Instant::now();
                world
                    .store
                    .sync(live, Phase::Computing, progress, world.now)
                    .await
                    .unwrap();
                beats.push(start.elapsed());
            }
        }
        for attempt in &attempts {
            let output = format!("{} {}", attempt.chain, attempt.hop);
            world
                .blob(world.claim(&output).output, world::OUTPUT_BYTES)
                .await;
            world.blob(world.claim(&output).trace, 300).await;
            let start = Instant::now();
            world.submit(attempt, &output).await;
            submits.push(start.elapsed());
        }
    }
    report("claims", &mut claims);
    report("heartbeats", &mut beats);
    report("submits", &mut submits);
}
