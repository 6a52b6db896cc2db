//! A real coordinator in a process of its own (so that it can be killed), and agents whose computing process is a
//! script that "computes" a well-formed ciphertext.
#![allow(dead_code, clippy::unwrap_used, missing_docs)]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cipherhop_ckks::{Params, ScaleId, ciphertext_size, pack};
use cipherhop_coordinator::auth::Token;
use cipherhop_coordinator::blobs::LocalBlobs;
use cipherhop_coordinator::clock::{Clock, SystemClock};
use cipherhop_coordinator::config::Config;
use cipherhop_coordinator::service::{Core, serve};
use cipherhop_coordinator::store::{NewToken, Role, open_sqlite};
use cipherhop_proto::client::{
    Backoff, BearerToken, ConnectOptions, Connection, Source, TransferPolicy, upload,
};
use cipherhop_proto::{ChainId, Digest, TokenId, v1};
use cipherhop_worker::agent::{Agent, Options};
use cipherhop_worker::child::Runner;
use cipherhop_worker::folder::Folder;
use cipherhop_worker::report::Reporter;
use tokio_util::sync::CancellationToken;

pub const SET: &str = "n10-INSECURE";
pub const LEVEL: usize = 18;

/// Body of the process that [`Coordinator`] starts; a test file calls it in an ignored test of its own name.
pub fn coordinator_process() {
    let Ok(dir) = std::env::var("TEST_COORDINATOR_DIR") else {
        return;
    };
    let dir = PathBuf::from(dir);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let mut config = Config::default();
        config.volunteers.sync_seconds = 1;
        config.blobs.headroom_bytes = 0;
        config.leases.backoff_base_millis = 1;
        let store = open_sqlite(&dir.join("coordinator.db")).await.unwrap();
        let blobs = LocalBlobs::open(&dir.join("blobs"), config.blobs.local_limits()).unwrap();
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
        if !dir.join("admin.token").exists() {
            let token = Token::generate(Role::Admin).unwrap();
            let (id, hash) = (TokenId::generate(), token.hash());
            let new = NewToken {
                id,
                hash,
                role: Role::Admin,
                account_name: "admin".into(),
            };
            store.create_token(new, clock.now()).await.unwrap();
            std::fs::write(dir.join("admin.token"), token.reveal()).unwrap();
        }
        let port: u16 = std::env::var("TEST_COORDINATOR_PORT")
            .unwrap()
            .parse()
            .unwrap();
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", port))
            .await
            .unwrap();
        let shutdown = CancellationToken::new();
        tokio::spawn(cipherhop_coordinator::tasks::reaper::run(
            store.clone(),
            clock.clone(),
            shutdown.clone(),
        ));
        serve(
            Core::new(store, Arc::new(blobs), clock, config, shutdown),
            listener,
        )
        .await
        .unwrap();
    });
}

pub struct Coordinator {
    pub dir: PathBuf,
    pub port: u16,
    child: Option<Child>,
}

impl Coordinator {
    pub async fn start(dir: &Path) -> Coordinator {
        std::fs::create_dir_all(dir).unwrap();
        let port = std::net::TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let mut coordinator = Coordinator {
            dir: dir.to_owned(),
            port,
            child: None,
        };
        coordinator.restart().await;
        coordinator
    }

    /// Starts the process (again) on the same port and data.
    pub async fn restart(&mut self) {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "coordinator_process", "--ignored", "--nocapture"])
            .env("TEST_COORDINATOR_DIR", &self.dir)
            .env("TEST_COORDINATOR_PORT", self.port.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        self.child = Some(child);
        let begin = Instant::now();
        while tokio::net::TcpStream::connect(("127.0.0.1", self.port))
            .await
            .is_err()
        {
            assert!(
                begin.elapsed() < Duration::from_secs(30),
                "the coordinator did not start"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// kill -9.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub fn connect(&self, token: Option<&str>) -> Connection {
        let token = token.map(BearerToken::new);
        Connection::lazy(&ConnectOptions {
            url: self.url(),
            token,
            ca: None,
            allow_plaintext: false,
        })
        .unwrap()
    }

    pub fn admin(&self) -> Connection {
        self.connect(Some(
            &std::fs::read_to_string(self.dir.join("admin.token")).unwrap(),
        ))
    }

    pub async fn token(&self, role: v1::TokenRole, account: &str) -> String {
        let request = v1::CreateTokenRequest {
            role: role.into(),
            account: account.into(),
            ..Default::default()
        };
        self.admin()
            .admin()
            .create_token(request)
            .await
            .unwrap()
            .into_inner()
            .token
    }

    pub async fn owner(&self) -> Connection {
        self.connect(Some(&self.token(v1::TokenRole::Owner, "key holder").await))
    }

    /// Enrols a device of an account with the real program; its data folder.
    pub async fn enroll(&self, dir: &Path, account: &str) -> PathBuf {
        let invite = self.token(v1::TokenRole::Invite, account).await;
        let data = dir.join(account);
        let done = worker(&data)
            .args([
                "enroll",
                "--coordinator",
                &self.url(),
                "--invite",
                &invite,
                "--name",
                account,
            ])
            .output()
            .unwrap();
        assert!(
            done.status.success(),
            "{}",
            String::from_utf8_lossy(&done.stderr)
        );
        assert!(!String::from_utf8_lossy(&done.stdout).contains(&invite));
        data
    }

    pub async fn status(&self, chain: &[u8]) -> v1::GetChainResponse {
        let request = v1::GetChainRequest {
            chain_id: chain.to_vec(),
            name: String::new(),
        };
        self.admin()
            .chain()
            .get_chain(request)
            .await
            .unwrap()
            .into_inner()
    }
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The real program on a data folder.
pub fn worker(data: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cipherhop-worker"));
    command.arg("--data").arg(data);
    command
}

/// Well-formed bytes of a ciphertext whose residues follow from `seed`.
pub fn ciphertext(seed: u64) -> Vec<u8> {
    let params = Params::by_name(SET).unwrap();
    let mut bytes = Vec::with_capacity(ciphertext_size(&params, LEVEL));
    bytes.extend_from_slice(b"CHCT");
    bytes.extend_from_slice(&2u16.to_le_bytes());
    bytes.extend_from_slice(&[1, 2, LEVEL as u8, ScaleId::Message as u8, 0, 0]);
    bytes.extend_from_slice(&params.digest());
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for _component in 0..2 {
        for q in &params.q[..=LEVEL] {
            let residues: Vec<u64> = (0..params.n())
                .map(|_| {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    state % q
                })
                .collect();
            pack(&residues, *q, &mut bytes);
        }
    }
    assert_eq!(bytes.len(), ciphertext_size(&params, LEVEL));
    bytes
}

/// What the scripts hand in for a hop.
pub fn output(hop: u32) -> Vec<u8> {
    ciphertext(1000 + u64::from(hop))
}

pub const TRACE: &[u8] = b"{\"step\":0}\n";

/// Uploads blobs with their roles as the key holder does.
pub async fn upload_all(owner: &Connection, blobs: &[(Vec<u8>, v1::BlobRole)]) {
    for (bytes, role) in blobs {
        let blob = v1::BlobRef {
            digest: Digest::of(bytes).to_vec(),
            size: bytes.len() as u64,
            role: (*role).into(),
            name: String::new(),
        };
        upload(
            owner,
            &blob,
            Source::Bytes(bytes),
            None,
            &TransferPolicy::default(),
            &|_| (),
        )
        .await
        .unwrap();
    }
}

/// A chain of synthetic blobs in the coordinator; its id.
pub async fn create_chain(owner: &Connection, name: &str, hops: u32, quorum: u32) -> Vec<u8> {
    let params = Params::by_name(SET).unwrap();
    let program = br#"{"format":"cipherhop-program/1","name":"test"}"#.to_vec();
    let manifest = br#"{"keys":[]}"#.to_vec();
    let key = b"an evaluation key".to_vec();
    let input = ciphertext(1);
    let weights: Vec<Vec<u8>> = (0..hops)
        .map(|h| format!("weights of layer {h}").into_bytes())
        .collect();
    let request = v1::CreateChainRequest {
        chain_id: ChainId::generate().to_vec(),
        name: name.into(),
        program_digest: Digest::of(&program).to_vec(),
        parameter_set: SET.into(),
        parameter_digest: params.digest().to_vec(),
        key_manifest_digest: Digest::of(&manifest).to_vec(),
        key_digests: vec![Digest::of(&key).to_vec()],
        input_digest: Digest::of(&input).to_vec(),
        hops: (0..hops)
            .map(|hop| v1::HopInputs {
                hop,
                weights_digest: Digest::of(&weights[hop as usize]).to_vec(),
                archived_digest: Vec::new(),
            })
            .collect(),
        quorum,
        allow_insecure: true,
        boundary_level: LEVEL as u32,
        boundary_bytes: ciphertext_size(&params, LEVEL) as u64,
        worker_memory_bytes: 1 << 20,
    };
    let mut blobs = vec![
        (program, v1::BlobRole::Program),
        (manifest, v1::BlobRole::KeyManifest),
        (key, v1::BlobRole::EvaluationKey),
        (input, v1::BlobRole::Input),
    ];
    blobs.extend(weights.into_iter().map(|w| (w, v1::BlobRole::Weights)));
    upload_all(owner, &blobs).await;
    owner.chain().create_chain(request.clone()).await.unwrap();
    request.chain_id
}

/// A computing process that checks its blobs, does what `extra` says and hands in the output prepared for the hop.
/// Starts are counted in `starts`, a line per start.
pub fn script(dir: &Path, hops: u32, extra: &str) -> Runner {
    for hop in 0..hops {
        prepare_output(dir, hop, &output(hop));
    }
    std::fs::write(dir.join("trace"), TRACE).unwrap();
    let text = format!(
        r#"job="$0"; dir="{dir}"
field() {{ sed -n 's/.*"'"$1"'": *"\{{0,1\}}\([^",]*\).*/\1/p' "$job" | head -n 1; }}
hop=$(field layer); spool=$(field spool); cache=$(field keys)
echo "$hop" >> "$dir/starts"
for file in "$cache"/*; do
  case "$file" in *.part) continue;; esac
  if [ "$(sha256sum < "$file" | cut -d' ' -f1)" != "$(basename "$file")" ]; then
    echo '{{"event":"failed","kind":"input","detail":"a damaged blob"}}'; exit 1
  fi
done
echo '{{"event":"started","steps_total":2,"steps_done":0}}'
echo '{{"event":"step_started","index":0,"name":"first"}}'
{extra}
echo '{{"event":"step_done","index":0,"name":"first","seconds":0.25}}'
mkdir -p "$spool"; cp "$dir/output-$hop" "$spool/output"; cp "$dir/trace" "$spool/trace"
cat "$dir/finished-$hop""#,
        dir = dir.display()
    );
    Runner {
        command: ["bash", "-c", &text].map(Into::into).to_vec(),
    }
}

/// What the script hands in for a hop.
pub fn prepare_output(dir: &Path, hop: u32, bytes: &[u8]) {
    std::fs::write(dir.join(format!("output-{hop}")), bytes).unwrap();
    let result = serde_json::json!({
        "event": "finished",
        "result": {
            "output": Digest::of(bytes), "output_size": bytes.len(),
            "trace": Digest::of(TRACE), "trace_size": TRACE.len(),
            "trace_root": Digest::of(b"root"), "compute_seconds": 0.5,
        },
        "profile": {
            "lay": 0.0, "boot": 0.0, "bootstraps": 0, "stc": 0.0, "modraise": 0.0, "cts": 0.0, "evalmod": 0.0, "key_bytes": 0,
        },
    });
    std::fs::write(dir.join(format!("finished-{hop}")), format!("{result}\n")).unwrap();
}

pub fn starts(dir: &Path) -> usize {
    std::fs::read_to_string(dir.join("starts"))
        .unwrap_or_default()
        .lines()
        .count()
}

/// An agent on an enrolled data folder.
pub fn agent(data: &Path, runner: Runner) -> Agent {
    let options = Options {
        threads: 1,
        cache_quota: 1 << 30,
        memory: None,
        memory_elsewhere: None,
        allow_insecure: true,
        hours: cipherhop_worker::hours::Hours::default(),
        clock: Arc::new(cipherhop_worker::hours::Minute::now),
        chain: None,
        only_claims: false,
        backoff: Backoff::new(Duration::from_millis(50), Duration::from_millis(400)),
    };
    let folder = Folder::open(data).unwrap();
    Agent::open(
        folder,
        runner,
        options,
        Arc::new(Reporter::silent()),
        CancellationToken::new(),
    )
    .unwrap()
}

/// Waits until something holds.
pub async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let begin = Instant::now();
    while !holds().await {
        assert!(
            begin.elapsed() < Duration::from_secs(30),
            "waited in vain: {what}"
        );
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
}

/// Runs beside the test on a thread of its own.
pub fn apart<T: Send + 'static>(
    work: impl AsyncFnOnce() -> T + Send + 'static,
) -> tokio::task::JoinHandle<T> {
    let handle = tokio::runtime::Handle::current();
    tokio::task::spawn_blocking(move || handle.block_on(work()))
}
