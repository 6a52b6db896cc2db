//! `dev-cert`: a certificate authority and a server certificate for tests and small sites.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::{Duration, SystemTime};

use super::{DevCertArgs, Failure, output};
use crate::tls::DevCertificate;

const DAY: Duration = Duration::from_secs(24 * 3600);
/// Clocks of clients may be behind by as much.
const EARLIER: Duration = Duration::from_secs(3600);

pub(super) fn dev_cert(args: &DevCertArgs, json: bool) -> Result<(), Failure> {
    let valid = DAY * u32::from(args.days);
    let from = SystemTime::now() - EARLIER;
    let made = DevCertificate::make(&args.host, from, valid + EARLIER).map_err(Failure::config)?;
    std::fs::create_dir_all(&args.out)
        .map_err(|e| Failure::other(format!("cannot make {}: {e}", args.out.display())))?;
    let path = |name: &str| args.out.join(name);
    for (name, text, mode) in [
        ("server.key", &made.key, 0o600),
        ("server.pem", &made.certificate, 0o644),
        ("ca.pem", &made.ca, 0o644),
    ] {
        write_new(&path(name), text, mode)?;
    }
    output::dev_cert(&args.out, &args.host, args.days, json)
}

/// Never over a file that is there: clients may trust it.
fn write_new(path: &Path, text: &str, mode: u32) -> Result<(), Failure> {
    std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(|e| match e.kind() {
            std::io::ErrorKind::AlreadyExists => Failure::other(format!(
                "{} is there already; give another folder with --out, or remove it first",
                path.display()
            )),
            _ => Failure::other(format!("cannot write {}: {e}", path.display())),
        })
}
