//! The folder with a chain's private state: what was asked for, what was made, what came back.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use cipherhop_hop::{calib::Calibration, program::Program};
use cipherhop_proto::{
    ChainId, Digest,
    client::{BearerToken, ConnectOptions, Connection},
};
use serde::{Deserialize, Serialize};

use crate::{
    cli::Coordinator,
    files::{private_folder, read_bounded, write_private},
    keyfolder::KeyFolder,
};

const FORMAT: &str = "cipherhop-owner-chain/1";

/// A chain as its owner knows it. Holds the prompt: the file is readable by the owner only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChainState {
    /// Format of this file.
    pub format: String,
    /// Id of the chain.
    pub chain_id: ChainId,
    /// Name shown to volunteers.
    pub name: String,
    /// Address of the coordinator.
    pub coordinator: String,
    /// File with the owner token.
    pub token_file: PathBuf,
    /// Certificate authority.
    pub ca: Option<PathBuf>,
    /// http:// to another machine allowed.
    pub allow_plaintext: bool,
    /// Key folder.
    pub keys: PathBuf,
    /// Model, as given.
    pub model: String,
    /// SHA-256 of its weights, hex.
    pub weights_sha256: String,
    /// Private tokens.
    pub tokens: Vec<u32>,
    /// Agreeing results a hop needs.
    pub quorum: u32,
    /// Insecure parameters allowed.
    pub allow_insecure: bool,
    /// Digest of the input ciphertext, once made.
    pub input: Option<Digest>,
    /// The coordinator has accepted the chain.
    pub created: bool,
    /// Public keys the coordinator may sign the archive with, hex: the one it had when the chain was made, and those
    /// trusted since.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ledger_keys: Vec<String>,
    /// Rows from before the archive was signed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unsigned_rows: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// An opened chain folder.
#[derive(Debug)]
pub struct ChainFolder {
    dir: PathBuf,
    /// State.
    pub state: ChainState,
}

impl ChainFolder {
    /// Starts a folder, or goes on with one that asks for the same.
    pub fn start(dir: &Path, state: ChainState, calibration: &[u8]) -> anyhow::Result<Self> {
        private_folder(dir)?;
        if dir.join("chain.json").exists() {
            let old = Self::open(dir)?;
            let same = ChainState {
                chain_id: old.state.chain_id,
                input: old.state.input,
                created: old.state.created,
                ledger_keys: old.state.ledger_keys.clone(),
                unsigned_rows: old.state.unsigned_rows,
                ..state
            };
            if same != old.state
                || read_bounded(&dir.join("calibration.json"), 64 << 20)? != calibration
            {
                bail!(
                    "{} belongs to another chain: the arguments differ",
                    dir.display()
                );
            }
            return Ok(old);
        }
        write_private(&dir.join("calibration.json"), calibration)?;
        let folder = Self {
            dir: dir.to_path_buf(),
            state,
        };
        folder.save()?;
        Ok(folder)
    }

    /// Opens a folder made by [`Self::start`].
    pub fn open(dir: &Path) -> anyhow::Result<Self> {
        let bytes = read_bounded(&dir.join("chain.json"), 1 << 24)?;
        let state: ChainState = serde_json::from_slice(&bytes)
            .with_context(|| format!("{} is no chain folder", dir.display()))?;
        if state.format != FORMAT {
            bail!(
                "{} has the format {}, this program reads {FORMAT}",
                dir.display(),
                state.format
            );
        }
        Ok(Self {
            dir: dir.to_path_buf(),
            state,
        })
    }

    /// Writes the state.
    pub fn save(&self) -> anyhow::Result<()> {
        write_private(
            &self.dir.join("chain.json"),
            &serde_json::to_vec_pretty(&self.state)?,
        )
    }

    /// A file in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// The calibration the chain was made with.
    pub fn calibration(&self) -> anyhow::Result<Calibration> {
        Ok(Calibration::parse(&read_bounded(
            &self.path("calibration.json"),
            64 << 20,
        )?)?)
    }

    /// The program.
    pub fn program(&self) -> anyhow::Result<Program> {
        let bytes = read_bounded(&self.path("program.json"), 64 << 20)
            .context("the chain was not created completely; run chain create again")?;
        Ok(Program::parse(&bytes)?)
    }

    /// The key folder.
    pub fn keys(&self) -> anyhow::Result<KeyFolder> {
        KeyFolder::open(&self.state.keys)
    }

    /// A connection to the chain's coordinator.
    pub fn connect(&self) -> anyhow::Result<Connection> {
        connect(&Coordinator {
            coordinator: self.state.coordinator.clone(),
            token_file: self.state.token_file.clone(),
            ca: self.state.ca.clone(),
            allow_plaintext: self.state.allow_plaintext,
        })
    }
}

/// State of a new chain.
pub fn new_state(
    c: &Coordinator,
    keys: &Path,
    model: String,
    name: String,
) -> anyhow::Result<ChainState> {
    let absolute =
        |p: &Path| std::path::absolute(p).with_context(|| format!("bad path {}", p.display()));
    let model = if Path::new(&model).exists() {
        absolute(Path::new(&model))?.display().to_string()
    } else {
        model
    };
    Ok(ChainState {
        format: FORMAT.into(),
        chain_id: ChainId::generate(),
        name,
        coordinator: c.coordinator.clone(),
        token_file: absolute(&c.token_file)?,
        ca: c.ca.as_deref().map(absolute).transpose()?,
        allow_plaintext: c.allow_plaintext,
        keys: absolute(keys)?,
        model,
        weights_sha256: String::new(),
        tokens: Vec::new(),
        quorum: 2,
        allow_insecure: false,
        input: None,
        created: false,
        ledger_keys: Vec::new(),
        unsigned_rows: 0,
    })
}

/// Connects with the token in the file named.
pub fn connect(c: &Coordinator) -> anyhow::Result<Connection> {
    let text = read_bounded(&c.token_file, 4096).context("owner token")?;
    let text = String::from_utf8(text)
        .ok()
        .context("the token file holds no text")?;
    Ok(Connection::lazy(&ConnectOptions {
        url: c.coordinator.clone(),
        token: Some(BearerToken::new(&text)),
        ca: c.ca.clone(),
        allow_plaintext: c.allow_plaintext,
    })?)
}
