//! The coordinator's program, started with one point armed.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::{Child, Command};

/// Leases run out quickly, every few kilobytes are made durable, nobody is limited.
const CONFIG: &str = "\
[leases]
soft_seconds = 1
grace_seconds = 0
backoff_base_millis = 1
disconnect_budget = 1000000
[blobs]
headroom_bytes = 0
commit_every_bytes = 8192
[limits]
calls_per_second = 0
unknown_per_second = 0
";

pub struct Place {
    pub data: PathBuf,
    pub port: u16,
    /// PostgreSQL instead of SQLite.
    pub database: Option<String>,
    starts: u32,
}

/// What kills the process.
#[derive(Clone, Debug, PartialEq)]
pub enum Death {
    /// At a pass of a named point.
    At(&'static str, u32),
    /// From outside, after so long.
    After(Duration),
}

impl Place {
    pub fn new(dir: &Path, database: Option<String>) -> Place {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        std::fs::write(dir.join("config.toml"), CONFIG).unwrap();
        Place {
            data: dir.join("data"),
            port: free.local_addr().unwrap().port(),
            database,
            starts: 0,
        }
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub fn log(&self) -> PathBuf {
        self.data.with_extension("log")
    }

    /// Starts the program; the file says whether the point was passed.
    pub fn start(&mut self, death: Option<&Death>) -> (Child, PathBuf) {
        self.starts += 1;
        let fired = self.data.with_extension(format!("fired-{}", self.starts));
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.log());
        let mut command = Command::new(env!("CARGO_BIN_EXE_cipherhop-coordinator"));
        command
            .args(["serve", "--listen", &format!("127.0.0.1:{}", self.port)])
            .arg("--data")
            .arg(&self.data)
            .arg("--config")
            .arg(self.data.with_file_name("config.toml"))
            .env("RUST_LOG", "warn")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log.unwrap())
            .kill_on_drop(true);
        if let Some(url) = &self.database {
            command.env("CIPHERHOP_DATABASE_URL", url);
        }
        if let Some(Death::At(name, pass)) = death {
            let armed = format!("{name}*{pass}={}", fired.display());
            command.env(cipherhop_failpoint::VARIABLE, armed);
        }
        (command.spawn().unwrap(), fired)
    }
}
