//! `keygen`: a new secret key.

use cipherhop_ckks::{Params, Security};
use serde_json::json;

use crate::{
    cli::Keygen,
    keyfolder::KeyFolder,
    report::{Outcome, Output, Refused},
};

/// Runs the command.
pub fn run(args: &Keygen, out: &Output) -> anyhow::Result<Outcome> {
    let params = Params::by_name(&args.params)?;
    if params.is_insecure() && !args.allow_insecure {
        return Err(Refused::Insecure(params.name).into());
    }
    let security = match &params.security {
        Security::Estimated { bits, source, .. } => format!("{bits:.1} bits by {source}"),
        Security::Insecure => "none, for tests only".to_string(),
    };
    let folder = KeyFolder::create(&args.out, params)?;
    let (name, digest) = (&folder.params.name, hex::encode(folder.params.digest()));
    let value = json!({ "parameter_set": name, "parameter_digest": digest, "security": security, "keys": args.out });
    let text = format!(
        "Secret key for {name} in {} (security: {security}).\nKeep the folder private and backed up: without it nothing can be decrypted.",
        args.out.display()
    );
    out.result(&value, &text)?;
    Ok(Outcome::Success)
}
