//! A PostgreSQL server for tests: the one of TEST_POSTGRES_URL, or an own cluster that goes away with the process.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use sqlx::{AssertSqlSafe, Connection, PgConnection, raw_sql};
use tokio::sync::OnceCell;

/// Keeps the server until its standard input closes, which also happens when the tests are killed.
const KEEPER: &str = r#"
trap '' INT TERM HUP
dir=$1; shift
"$@" </dev/null >"$dir/log" 2>&1 &
server=$!
cat >/dev/null
kill -QUIT $server
wait $server
rm -rf "$dir"
"#;

struct Server {
    url: String,
    /// Own cluster: databases go with it.
    own: Option<Child>,
}

static SERVER: OnceCell<Option<Server>> = OnceCell::const_new();
static TEMPLATE: OnceCell<String> = OnceCell::const_new();
static NUMBER: AtomicU32 = AtomicU32::new(0);
/// Tests do without.
static FSYNC: AtomicBool = AtomicBool::new(false);

/// One database of one test.
pub struct Database {
    pub url: String,
    name: String,
    server: &'static Server,
}

/// A migrated, empty database; `None`, and a line among the skipped suites, where there is no PostgreSQL.
pub async fn database() -> Option<Database> {
    let server = server().await?;
    let template = TEMPLATE
        .get_or_init(|| async {
            let empty = create(server, "template0").await;
            let store = cipherhop_coordinator::store::open_postgres(&empty.url, 2);
            store.await.unwrap().close().await;
            std::mem::take(&mut std::mem::ManuallyDrop::new(empty).name)
        })
        .await;
    Some(create(server, template).await)
}

/// As [`database`], with fsync, for measurements. The first call in the process decides for its cluster.
#[allow(dead_code)]
pub async fn durable_database() -> Option<Database> {
    FSYNC.store(true, Ordering::Relaxed);
    database().await
}

/// A database without any table.
pub async fn empty_database() -> Option<Database> {
    Some(create(server().await?, "template0").await)
}

async fn create(server: &'static Server, template: &str) -> Database {
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = format!("cipherhop_test_{}_{number}", std::process::id());
    run(
        &server.url,
        format!("CREATE DATABASE {name} TEMPLATE {template}"),
    )
    .await;
    let (base, query) = server.url.split_once('?').unwrap_or((&server.url, ""));
    let (host, _) = base.rsplit_once('/').unwrap();
    let url = format!("{host}/{name}?{query}");
    Database { url, name, server }
}

async fn run(url: &str, sql: String) {
    let mut connection = PgConnection::connect(url).await.unwrap();
    raw_sql(AssertSqlSafe(sql))
        .execute(&mut connection)
        .await
        .unwrap();
}

impl Drop for Database {
    fn drop(&mut self) {
        if self.server.own.is_some() {
            return;
        }
        let (url, sql) = (
            &self.server.url,
            format!("DROP DATABASE {} WITH (FORCE)", self.name),
        );
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build();
                runtime.unwrap().block_on(run(url, sql));
            });
        });
    }
}

async fn server() -> Option<&'static Server> {
    let server = SERVER.get_or_init(|| async {
        if let Ok(url) = std::env::var("TEST_POSTGRES_URL") {
            return Some(Server { url, own: None });
        }
        match programs() {
            Some(programs) => Some(start(&programs).await),
            None => {
                skipped(
                    "store on PostgreSQL: install the package postgresql or set TEST_POSTGRES_URL",
                );
                None
            }
        }
    });
    server.await.as_ref()
}

/// Says that a suite did not run, where deploy/test.sh looks for it.
pub fn skipped(what: &str) {
    eprintln!("skipped: {what}");
    if let Some(path) = std::env::var_os("CIPHERHOP_TEST_SKIPS") {
        use std::io::Write;
        let mut file = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)
            .unwrap();
        writeln!(file, "{what}").unwrap();
    }
}

/// The folder of initdb and postgres: in PATH, or where Debian puts it.
fn programs() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    if let Ok(versions) = std::fs::read_dir("/usr/lib/postgresql") {
        folders.extend(versions.flatten().map(|version| version.path().join("bin")));
    }
    let there =
        |folder: &PathBuf| folder.join("initdb").exists() && folder.join("postgres").exists();
    folders.into_iter().rev().find(there)
}

/// PostgreSQL refuses to run as root.
fn as_server_user(program: &Path) -> Command {
    if !nix::unistd::geteuid().is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]);
    command.arg(program);
    command
}

async fn start(programs: &Path) -> Server {
    let dir = tempfile::Builder::new()
        .prefix("cipherhop-pg-")
        .tempdir()
        .unwrap()
        .keep();
    if nix::unistd::geteuid().is_root() {
        let owned = Command::new("chown")
            .arg("postgres")
            .arg(&dir)
            .status()
            .unwrap();
        assert!(owned.success(), "chown of the cluster's folder");
    }
    let data = dir.join("data");
    let made = as_server_user(&programs.join("initdb"))
        .args([
            "--auth=trust",
            "--username=postgres",
            "--no-sync",
            "--encoding=UTF8",
            "--locale=C",
        ])
        .arg("--pgdata")
        .arg(&data)
        .current_dir(&dir)
        .output()
        .unwrap();
    assert!(
        made.status.success(),
        "initdb: {}",
        String::from_utf8_lossy(&made.stderr)
    );
    let fsync = match FSYNC.load(Ordering::Relaxed) {
        true => "fsync=on",
        false => "fsync=off",
    };
    let server = as_server_user(&programs.join("postgres"));
    let own = Command::new("sh")
        .args(["-c", KEEPER, "keeper"])
        .arg(&dir)
        .arg(server.get_program())
        .args(server.get_args())
        .arg("-D")
        .arg(&data)
        .arg("-k")
        .arg(&dir)
        .args(["-h", "", "-c", fsync, "-c", "max_connections=200"])
        .current_dir(&dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let url = format!(
        "postgres://postgres@localhost/postgres?host={}",
        dir.display()
    );
    let start = Instant::now();
    while let Err(error) = PgConnection::connect(&url).await {
        let log = std::fs::read_to_string(dir.join("log")).unwrap_or_default();
        assert!(start.elapsed() < Duration::from_secs(60), "{error}\n{log}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Server {
        url,
        own: Some(own),
    }
}
