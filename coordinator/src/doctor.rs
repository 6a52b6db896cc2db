//! Looks whether a coordinator's settings, folder, database and blobs are in order. Changes nothing.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use fs4::fs_std::FileExt;
use sqlx::migrate::Migrator;
use sqlx::postgres::PgConnectOptions;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection};

use crate::config::Config;
use crate::database::DatabaseUrl;
use crate::ledger_key;
use crate::metrics::Disk;
use crate::tls::ServerCertificate;

mod blobs;
mod ledger;

/// How serious a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Grade {
    /// In order.
    Good,
    /// Works, but somebody should look.
    Warning,
    /// Does not work, or something is lost.
    Bad,
}

impl Grade {
    /// One word.
    pub const fn name(self) -> &'static str {
        match self {
            Grade::Good => "good",
            Grade::Warning => "warning",
            Grade::Bad => "bad",
        }
    }
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What was looked at.
    pub what: &'static str,
    /// How it is.
    pub grade: Grade,
    /// In words; what to do where it is not good.
    pub text: String,
}

/// How far the database's clock may be from this machine's.
const CLOCKS_APART: Duration = Duration::from_secs(5);

/// The migration since which rows of the archive are signed.
const SIGNED_LEDGER: i64 = 5;

struct Findings(Vec<Finding>);

impl Findings {
    fn add(&mut self, what: &'static str, grade: Grade, text: impl Into<String>) {
        let text = text.into();
        self.0.push(Finding { what, grade, text });
    }
}

/// [`examine_with`] the place of the blobs as the configuration has it.
pub async fn examine(
    data: &Path,
    config: Option<&Path>,
    database: Option<&DatabaseUrl>,
) -> Vec<Finding> {
    examine_with(data, config, None, database).await
}

/// Looks at everything; the findings in the order of looking. `blobs` is s3://BUCKET/PREFIX of a command line.
pub async fn examine_with(
    data: &Path,
    config: Option<&Path>,
    blobs: Option<&str>,
    database: Option<&DatabaseUrl>,
) -> Vec<Finding> {
    let mut found = Findings(Vec::new());
    let config = match Config::load_with(config, blobs) {
        Ok(config) => {
            let text = "every key is known and has a sensible value";
            found.add("configuration", Grade::Good, text);
            config
        }
        Err(e) => {
            found.add("configuration", Grade::Bad, e.to_string());
            Config::default()
        }
    };
    certificate(&config, &mut found);
    let bucket = match config.blobs.bucket() {
        Some(settings) => blobs::bucket(settings, &mut found).await,
        None => None,
    };
    if !folder(data, &mut found) {
        return found.0;
    }
    disk(data, config.blobs.headroom_bytes, &mut found);
    let url = database.or(config.database.url.as_ref());
    let rows = match url {
        Some(url) => postgres(url, &mut found).await,
        None => sqlite(&data.join("coordinator.db"), &mut found).await,
    };
    match rows {
        Ok(Some(rows)) => {
            blobs::compare(data, &config, bucket.as_ref(), &rows.blobs, &mut found).await;
            work(&rows, &mut found);
            if let Some(archive) = &rows.archive {
                let key = ledger_key::path(data, &config.ledger);
                ledger::judge(archive, &key, &mut found);
            }
        }
        Ok(None) => {}
        Err(e) => found.add(
            "database",
            Grade::Bad,
            format!("{e}; is the server up and the address right?"),
        ),
    }
    found.0
}

fn certificate(config: &Config, found: &mut Findings) {
    let (Some(certificate), Some(key)) = (&config.server.tls_certificate, &config.server.tls_key)
    else {
        return;
    };
    match ServerCertificate::load(certificate, key) {
        Err(e) => found.add("certificate", Grade::Bad, e.to_string()),
        Ok(certificate) => match certificate.warning() {
            Some(warning) => found.add("certificate", Grade::Warning, warning),
            None => found.add("certificate", Grade::Good, "valid, and its key fits"),
        },
    }
}

/// False where there is nothing more to look at.
fn folder(data: &Path, found: &mut Findings) -> bool {
    let about = match fs::metadata(data) {
        Ok(about) => about,
        Err(e) => {
            let text = format!(
                "{}: {e}; `serve` makes it, or --data is wrong",
                data.display()
            );
            found.add("data folder", Grade::Bad, text);
            return false;
        }
    };
    match about.permissions().mode() & 0o077 {
        0 => found.add("data folder", Grade::Good, "only its owner may enter"),
        _ => {
            let text = format!(
                "others on this machine may enter it: chmod 700 {}",
                data.display()
            );
            found.add("data folder", Grade::Warning, text);
        }
    }
    let token = data.join("admin.token");
    match fs::metadata(&token).map(|about| about.permissions().mode() & 0o077) {
        Ok(0) => found.add("admin token", Grade::Good, "only its owner may read it"),
        Ok(_) => {
            let text = format!(
                "others may read it: chmod 600 {}, then make a new one",
                token.display()
            );
            found.add("admin token", Grade::Bad, text);
        }
        Err(_) => found.add(
            "admin token",
            Grade::Warning,
            "there is none; `serve` makes one",
        ),
    }
    let running = File::open(data.join("coordinator.lock")).and_then(|lock| {
        let free = FileExt::try_lock_shared(&lock)?;
        if free {
            FileExt::unlock(&lock)?;
        }
        Ok(!free)
    });
    let text = match running {
        Ok(true) => "a coordinator is running on this folder",
        Ok(false) => "no coordinator is running on this folder",
        Err(e) if e.kind() == ErrorKind::NotFound => "no coordinator ever ran on this folder",
        Err(_) => "it cannot be told whether a coordinator is running",
    };
    found.add("process", Grade::Good, text);
    true
}

fn disk(data: &Path, headroom_bytes: u64, found: &mut Findings) {
    let disk = Disk {
        folder: data.to_owned(),
        headroom_bytes,
    };
    let Some(free) = disk.free_bytes() else {
        return found.add(
            "disk",
            Grade::Warning,
            "the system does not say how much is free",
        );
    };
    let text = format!("{free} bytes are free, of which uploads leave {headroom_bytes}");
    match free / 2 > headroom_bytes {
        true => found.add("disk", Grade::Good, text),
        false if free > headroom_bytes => found.add(
            "disk",
            Grade::Warning,
            format!("{text}: make room before uploads are refused"),
        ),
        false => found.add(
            "disk",
            Grade::Bad,
            format!("{text}: uploads are refused; make room or lower blobs.headroom_bytes"),
        ),
    }
}

/// What the database holds.
struct Rows {
    /// Complete blobs and their sizes.
    blobs: Vec<(Vec<u8>, i64)>,
    /// Where the schema is not older than signatures.
    archive: Option<ledger::Archive>,
    stuck: i64,
    quarantined: i64,
}

macro_rules! rows {
    ($connection:expr, $migrator:expr, $found:expr) => {{
        let versions = "SELECT version FROM _sqlx_migrations WHERE success ORDER BY version";
        let applied: Vec<i64> = sqlx::query_scalar(versions)
            .fetch_all(&mut $connection)
            .await?;
        schema(&$migrator, &applied, $found);
        let archive = match applied.contains(&SIGNED_LEDGER) {
            false => None,
            true => Some(ledger::Archive {
                rows: sqlx::query_as(ledger::ROWS)
                    .fetch_all(&mut $connection)
                    .await?,
                attempts: sqlx::query_as(ledger::ATTEMPTS)
                    .fetch_all(&mut $connection)
                    .await?,
                keys: sqlx::query_scalar("SELECT public_key FROM ledger_keys ORDER BY number")
                    .fetch_all(&mut $connection)
                    .await?,
            }),
        };
        let blobs = "SELECT digest, size FROM blobs WHERE state = 'Complete'";
        let stuck = "SELECT count(*) FROM chains WHERE state = 'Stuck'";
        let quarantined = "SELECT count(*) FROM devices WHERE state = 'Quarantined'";
        Rows {
            archive,
            blobs: sqlx::query_as(blobs).fetch_all(&mut $connection).await?,
            stuck: sqlx::query_scalar(stuck)
                .fetch_one(&mut $connection)
                .await?,
            quarantined: sqlx::query_scalar(quarantined)
                .fetch_one(&mut $connection)
                .await?,
        }
    }};
}

async fn sqlite(path: &Path, found: &mut Findings) -> sqlx::Result<Option<Rows>> {
    if !path.is_file() {
        let text = "there is none yet; `serve` makes it";
        found.add("database", Grade::Warning, text);
        return Ok(None);
    }
    let mut connection = SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(false)
        .busy_timeout(Duration::from_secs(30))
        .pragma("query_only", "1")
        .connect()
        .await?;
    let checked: String = sqlx::query_scalar("PRAGMA quick_check(1)")
        .fetch_one(&mut connection)
        .await?;
    match checked.as_str() {
        "ok" => found.add("database", Grade::Good, "SQLite; every page is sound"),
        damage => found.add(
            "database",
            Grade::Bad,
            format!("SQLite says: {damage}; restore a backup"),
        ),
    }
    let rows = rows!(connection, sqlx::migrate!("../migrations/sqlite"), found);
    connection.close().await?;
    Ok(Some(rows))
}

async fn postgres(url: &DatabaseUrl, found: &mut Findings) -> sqlx::Result<Option<Rows>> {
    let options: PgConnectOptions = url.reveal().parse()?;
    let mut connection = options
        .application_name("cipherhop-doctor")
        .connect()
        .await?;
    let (version, theirs): (String, f64) = sqlx::query_as(
        "SELECT current_setting('server_version'), extract(epoch from clock_timestamp())::float8",
    )
    .fetch_one(&mut connection)
    .await?;
    found.add(
        "database",
        Grade::Good,
        format!("PostgreSQL {version} at {url}"),
    );
    let ours = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs_f64();
    let apart = (ours - theirs).abs();
    match apart < CLOCKS_APART.as_secs_f64() {
        true => found.add(
            "clock",
            Grade::Good,
            "this machine and the database agree on the time",
        ),
        false => found.add(
            "clock",
            Grade::Warning,
            format!(
                "this machine and the database are {apart:.0} s apart: run a time service on both"
            ),
        ),
    }
    let tables = "SELECT to_regclass('_sqlx_migrations') IS NOT NULL";
    let made: bool = sqlx::query_scalar(tables)
        .fetch_one(&mut connection)
        .await?;
    if !made {
        let text = "the database is empty; `serve` makes the tables";
        found.add("schema", Grade::Warning, text);
        return Ok(None);
    }
    let rows = rows!(connection, sqlx::migrate!("../migrations/postgres"), found);
    connection.close().await?;
    Ok(Some(rows))
}

fn schema(migrator: &Migrator, applied: &[i64], found: &mut Findings) {
    let known = migrator.iter().map(|m| m.version).max().unwrap_or(0);
    let newest = applied.last().copied().unwrap_or(0);
    match newest.cmp(&known) {
        std::cmp::Ordering::Equal => {
            found.add(
                "schema",
                Grade::Good,
                format!("version {newest}, as this program wants it"),
            );
        }
        std::cmp::Ordering::Less => found.add(
            "schema",
            Grade::Warning,
            format!("version {newest}; `serve` brings it to {known}: make a backup first"),
        ),
        std::cmp::Ordering::Greater => found.add(
            "schema",
            Grade::Bad,
            format!("version {newest}, but this program knows {known} only: use the newer program"),
        ),
    }
}

fn work(rows: &Rows, found: &mut Findings) {
    match rows.stuck {
        0 => found.add("chains", Grade::Good, "none is stuck"),
        n => found.add(
            "chains",
            Grade::Warning,
            format!("{n} stuck: `chain list` and `chain show` name the reason, `hop requeue` opens the hop again"),
        ),
    }
    match rows.quarantined {
        0 => found.add("devices", Grade::Good, "none is in quarantine"),
        n => found.add(
            "devices",
            Grade::Warning,
            format!(
                "{n} in quarantine: `device list` has the notes, `device unquarantine` lifts it"
            ),
        ),
    }
}
