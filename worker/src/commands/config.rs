//! `config`: the preferences file, and which values are in force.

use serde_json::{Value, json};

use super::Context;
use crate::cli::Config;
use crate::durable::{make_folder, write_atomic};
use crate::error::WorkerError;
use crate::folder::Folder;
use crate::preferences::{Choices, Preferences, TEMPLATE, path};

pub(super) fn config(context: &Context, command: Config) -> Result<(), WorkerError> {
    let file = path(&context.root);
    match command {
        Config::Path => {
            context.print(&json!({ "path": file }), &file.display().to_string());
            Ok(())
        }
        Config::Init => {
            make_folder(&context.root)?;
            if file.exists() {
                return Err(WorkerError::Request(format!(
                    "{} is there already; edit it, or remove it first",
                    file.display()
                )));
            }
            write_atomic(&file, TEMPLATE.as_bytes(), false)?;
            let text = format!(
                "wrote {}; every line in it is commented out: the defaults count",
                file.display()
            );
            context.print(&json!({ "path": file }), &text);
            Ok(())
        }
        Config::Check(flags) => check(context, &flags),
    }
}

fn check(context: &Context, flags: &Choices) -> Result<(), WorkerError> {
    let file = path(&context.root);
    let found = Preferences::load(&context.root, flags)?;
    let isa = crate::selftest::usable(found.isa.value).map(|_| ());
    // Without a folder there is no identity, and looking makes none.
    let identity = match context.root.exists() {
        true => Folder::open(&context.root)?.identity().ok(),
        false => None,
    };
    let there = if file.exists() { "" } else { " (not there)" };
    let mut text = format!("file: {}{there}\n", file.display());
    let mut rows = found.rows();
    if let Some(identity) = &identity {
        let row = |name: &str, value: &str| [name, value, "enrolment"].map(str::to_owned);
        rows.push(row("coordinator", &identity.coordinator));
        rows.push(row("name", &identity.name));
        rows.push(row("token", "(hidden)"));
    }
    let width = |column: usize| {
        rows.iter()
            .map(|row| row[column].chars().count())
            .max()
            .unwrap_or(0)
    };
    let (names, values) = (width(0), width(1));
    for [name, value, from] in &rows {
        text.push_str(&format!("{name:<names$}  {value:<values$}  {from}\n"));
    }
    let object = json!({
        "file": file, "file_found": file.exists(), "preferences": found,
        "coordinator": identity.as_ref().map_or(Value::Null, |i| json!(i.coordinator)),
        "name": identity.as_ref().map_or(Value::Null, |i| json!(i.name)),
    });
    context.print(&object, text.trim_end());
    isa
}
