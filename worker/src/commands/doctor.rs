//! `doctor`: whether this machine may and can work.

use cipherhop_ckks::Isa;
use cipherhop_proto::PROTOCOL_RANGE;
use cipherhop_proto::client::{UNARY_DEADLINE, unary};
use cipherhop_proto::v1::HelloRequest;
use serde_json::json;

use super::Context;
use crate::cli::Doctor;
use crate::error::WorkerError;
use crate::preferences::{Choices, Preferences};
use crate::{machine, selftest, units};

pub(super) async fn doctor(context: &Context, options: Doctor) -> Result<(), WorkerError> {
    let folder = context.folder()?;
    let flags = Choices {
        threads: options.threads,
        isa: options.isa,
        ..Choices::default()
    };
    let preferences = Preferences::load(folder.root(), &flags)?;
    let threads = preferences.threads.value;
    let isa = selftest::usable(preferences.isa.value)?;
    let memory = machine::memory();
    let disk = machine::free_disk(folder.root())?;
    let begin = std::time::Instant::now();
    let tested = tokio::task::spawn_blocking(move || selftest::run(isa, threads)).await;
    let tested =
        tested.map_err(|_| WorkerError::Request("the self-test was broken off".into()))??;
    let took = begin.elapsed().as_secs_f64();
    let connection = connection_state(context).await;
    let key = folder.device_key()?.map(|key| key.public().to_string());
    let signs = key.as_deref().unwrap_or("none; results are not signed");
    let verdict = tested.check().map(|_| ());
    let enough = machine::check_memory().and_then(|()| machine::check_disk(folder.root(), 0));
    let features = machine::features().join(" ");
    let kernels: Vec<&str> = Isa::available().into_iter().map(Isa::name).collect();
    let golden = match tested.expected {
        Some(expected) if expected == tested.digest => "as on every machine",
        Some(_) => "WRONG: this machine or build computes other bytes and must not work",
        None => "this build has none to compare with",
    };
    let text = format!(
        "processor: {} ({threads} threads; {features})\nkernel: {isa} (there are {})\nmemory: {} of {} available\ndisk: {} free at {}\n\
         self-test: {} in {}, {golden}\ndevice key: {signs}\ncoordinator: {connection}",
        machine::cpu(),
        kernels.join(", "),
        units::bytes(memory.available),
        units::bytes(memory.total),
        units::bytes(disk),
        folder.root().display(),
        tested.digest,
        units::seconds(took),
    );
    context.print(
        &json!({
            "version": env!("CARGO_PKG_VERSION"), "cpu": machine::cpu(), "features": machine::features(),
            "isa": machine::isa(), "kernel": isa.name(), "kernels": kernels, "threads": threads,
            "memory_total_bytes": memory.total, "memory_available_bytes": memory.available, "disk_free_bytes": disk,
            "golden_digest": tested.digest, "golden_expected": tested.expected, "golden_seconds": took,
            "golden_ok": verdict.is_ok(), "resources_ok": enough.is_ok(), "coordinator": connection,
            "device_key": key,
        }),
        &text,
    );
    verdict.and(enough)
}

async fn connection_state(context: &Context) -> String {
    let connection = match context.connect() {
        Ok(connection) => connection,
        Err(WorkerError::NotEnrolled(_)) => return "not enrolled".into(),
        Err(error) => return error.to_string(),
    };
    let request = HelloRequest {
        protocol_min: PROTOCOL_RANGE.0,
        protocol_max: PROTOCOL_RANGE.1,
        worker_version: env!("CARGO_PKG_VERSION").into(),
        program_formats: crate::agent::PROGRAM_FORMATS.map(str::to_owned).to_vec(),
        held: Vec::new(),
        features: cipherhop_proto::features::WORKER
            .iter()
            .map(|f| f.to_string())
            .collect(),
    };
    match unary(UNARY_DEADLINE, connection.volunteer().hello(request)).await {
        Ok(answer) => format!(
            "reachable, version {}, protocol {}",
            answer.coordinator_version, answer.protocol
        ),
        Err(error) => error.to_string(),
    }
}
