//! `doctor`.

use serde_json::json;

use super::{DoctorArgs, Failure, output};
use crate::doctor::{self, Grade};

pub(super) async fn doctor(args: DoctorArgs, json: bool) -> Result<(), Failure> {
    let (config, database) = (args.config.as_deref(), args.database.as_ref());
    let place = args.blobs.place.as_deref();
    let findings = doctor::examine_with(&args.data, config, place, database).await;
    let lines = findings
        .iter()
        .map(|f| format!("{:8} {:14} {}\n", f.grade.name(), f.what, f.text));
    let values: Vec<_> = findings
        .iter()
        .map(|f| json!({ "what": f.what, "grade": f.grade.name(), "text": f.text }))
        .collect();
    let text: String = lines.collect();
    output::print_either(json, json!({ "findings": values }), || text)?;
    match findings.iter().filter(|f| f.grade == Grade::Bad).count() {
        0 => Ok(()),
        bad => Err(Failure::other(format!(
            "{bad} of {} findings are bad",
            findings.len()
        ))),
    }
}
