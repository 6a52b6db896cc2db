//! Ciphertexts between steps as files, and the trace that says what they must contain.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::HopError;

fn io(what: String) -> impl FnOnce(std::io::Error) -> HopError {
    move |source| HopError::Io { what, source }
}

/// One line of the trace.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceLine {
    /// Step number from 0.
    pub step: u32,
    /// Step name.
    pub name: String,
    /// Register and digest (hex) of every input.
    pub inputs: Vec<(String, String)>,
    /// Register and digest (hex) of every output.
    pub outputs: Vec<(String, String)>,
    /// Wall time of the computation; not part of the root.
    pub seconds: f64,
}

impl TraceLine {
    fn without_time(&self) -> String {
        let t = (self.step, &self.name, &self.inputs, &self.outputs);
        serde_json::to_string(&t).unwrap_or_default()
    }
}

/// SHA-256 over the lines without their times.
pub fn trace_root(lines: &[TraceLine]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for line in lines {
        hash.update(line.without_time());
        hash.update(b"\n");
    }
    hash.finalize().into()
}

/// JSON lines.
pub fn trace_bytes(lines: &[TraceLine]) -> Result<Vec<u8>, HopError> {
    let mut out = Vec::new();
    for line in lines {
        serde_json::to_writer(&mut out, line).map_err(|e| HopError::Internal(e.to_string()))?;
        out.push(b'\n');
    }
    Ok(out)
}

/// Which hop a work folder belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobId {
    /// SHA-256 of the program, hex.
    pub program: String,
    /// Layer.
    pub layer: u32,
    /// SHA-256 of the weight pack, hex.
    pub weights: String,
    /// SHA-256 of the input ciphertext, hex.
    pub input: String,
}

/// The work folder of a hop.
#[derive(Debug)]
pub struct WorkDir {
    root: PathBuf,
    kept: Option<PathBuf>,
}

impl WorkDir {
    /// Opens a folder for a job; what another job left in it is removed.
    pub fn open(root: &Path, job: &JobId) -> Result<WorkDir, HopError> {
        let dir = WorkDir {
            root: root.to_path_buf(),
            kept: None,
        };
        fs::create_dir_all(dir.regs()).map_err(io(format!("creating {}", root.display())))?;
        let id = serde_json::to_vec(job).map_err(|e| HopError::Internal(e.to_string()))?;
        let at = root.join("job.json");
        if fs::read(&at).ok().as_deref() != Some(&id) {
            let _ = fs::remove_file(dir.trace_path());
            fs::remove_dir_all(dir.regs()).map_err(io("clearing the work folder".into()))?;
            fs::create_dir_all(dir.regs()).map_err(io("creating the work folder".into()))?;
            dir.write(&at, &id)?;
        }
        Ok(dir)
    }

    fn regs(&self) -> PathBuf {
        self.root.join("regs")
    }

    fn trace_path(&self) -> PathBuf {
        self.root.join("trace.jsonl")
    }

    fn reg_path(&self, name: &str) -> PathBuf {
        self.regs().join(format!("{name}.ct"))
    }

    /// Writes a file so that after a crash it is either whole or absent.
    fn write(&self, at: &Path, bytes: &[u8]) -> Result<(), HopError> {
        let what = || format!("writing {}", at.display());
        let mut tmp = at.as_os_str().to_owned();
        tmp.push(".tmp");
        let tmp = PathBuf::from(tmp);
        let mut file = File::create(&tmp).map_err(io(what()))?;
        file.write_all(bytes).map_err(io(what()))?;
        cipherhop_failpoint::at("checkpoint.written");
        file.sync_all().map_err(io(what()))?;
        fs::rename(&tmp, at).map_err(io(what()))?;
        cipherhop_failpoint::at("checkpoint.renamed");
        if let Some(parent) = at.parent() {
            File::open(parent)
                .and_then(|d| d.sync_all())
                .map_err(io(what()))?;
        }
        Ok(())
    }

    /// Writes a register.
    pub fn save(&self, name: &str, bytes: &[u8]) -> Result<(), HopError> {
        self.write(&self.reg_path(name), bytes)
    }

    /// From now on registers are also kept in that folder, under their digests.
    pub fn keeping(mut self, folder: Option<&Path>) -> Result<WorkDir, HopError> {
        if let Some(folder) = folder {
            fs::create_dir_all(folder).map_err(io(format!("creating {}", folder.display())))?;
        }
        self.kept = folder.map(Path::to_path_buf);
        Ok(self)
    }

    /// Keeps a register that was just written. It is the same file under a second name where the system can do that.
    pub fn keep(&self, name: &str, digest: &str) -> Result<(), HopError> {
        let Some(folder) = &self.kept else {
            return Ok(());
        };
        let (from, to) = (self.reg_path(name), folder.join(digest));
        if to.exists() || fs::hard_link(&from, &to).is_ok() {
            return Ok(());
        }
        fs::copy(&from, &to)
            .map(drop)
            .map_err(io(format!("writing {}", to.display())))
    }

    /// Bytes of a register, if they have that digest.
    pub fn load(&self, name: &str, digest: &str) -> Option<Vec<u8>> {
        let bytes = fs::read(self.reg_path(name)).ok()?;
        (hex::encode(Sha256::digest(&bytes)) == digest).then_some(bytes)
    }

    /// Deletes a register that no step needs any more.
    pub fn remove(&self, name: &str) {
        let _ = fs::remove_file(self.reg_path(name));
    }

    /// Lines of the trace up to the first that is torn, out of order or not of this program.
    pub fn trace(&self, names: &[&str]) -> Vec<TraceLine> {
        let text = fs::read_to_string(self.trace_path()).unwrap_or_default();
        let mut lines = Vec::new();
        for (i, line) in text.split_inclusive('\n').enumerate() {
            match serde_json::from_str::<TraceLine>(line) {
                Ok(l)
                    if line.ends_with('\n')
                        && l.step as usize == i
                        && names.get(i) == Some(&l.name.as_str()) =>
                {
                    lines.push(l);
                }
                _ => break,
            }
        }
        lines
    }

    /// Replaces the trace.
    pub fn rewrite_trace(&self, lines: &[TraceLine]) -> Result<(), HopError> {
        self.write(&self.trace_path(), &trace_bytes(lines)?)
    }

    /// Appends a line and makes it durable.
    pub fn append_trace(&self, line: &TraceLine) -> Result<(), HopError> {
        let what = || "appending to the trace".to_string();
        let mut file = fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(self.trace_path())
            .map_err(io(what()))?;
        file.write_all(&trace_bytes(std::slice::from_ref(line))?)
            .map_err(io(what()))?;
        cipherhop_failpoint::at("trace.written");
        file.sync_data().map_err(io(what()))
    }
}

/// Digest of every register as the trace tells it.
pub fn digests(lines: &[TraceLine]) -> BTreeMap<&str, &str> {
    lines
        .iter()
        .flat_map(|l| l.outputs.iter().map(|(n, d)| (n.as_str(), d.as_str())))
        .collect()
}
