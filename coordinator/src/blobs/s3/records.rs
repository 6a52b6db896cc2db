//! Names of objects in the bucket, and the two small JSON objects beside the bytes.
//!
//! ```text
//! PREFIX/sha256/ab/REST          entry: this blob is complete, its bytes are in that object
//! PREFIX/data/ab/REST/ID         bytes, written once under a name of their own
//! PREFIX/uploads/SENDER-DIGEST   upload: its multipart upload, acknowledged parts and tail
//! ```

use cipherhop_proto::Digest;
use object_store::path::Path;
use serde::{Deserialize, Serialize};

use super::super::UploadKey;

/// Most parts of a multipart upload.
pub(super) const MOST_PARTS: u64 = 10_000;
const MIB: u64 = 1 << 20;

/// Where the objects of one coordinator lie in its bucket.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    prefix: String,
}

impl Layout {
    pub fn new(prefix: &str) -> Layout {
        let prefix = prefix.trim_matches('/');
        Layout {
            prefix: match prefix {
                "" => String::new(),
                _ => format!("{prefix}/"),
            },
        }
    }

    pub fn at(&self, rest: &str) -> Path {
        Path::from(format!("{}{rest}", self.prefix))
    }

    pub fn entry(&self, digest: &Digest) -> Path {
        let (shard, rest) = split(digest);
        self.at(&format!("sha256/{shard}/{rest}"))
    }

    pub fn entries(&self, first: u8) -> Path {
        self.at(&format!("sha256/{}", hex::encode([first])))
    }

    /// Digest of an entry's name.
    pub fn entry_digest(&self, path: &Path) -> Option<Digest> {
        let mut names = path.as_ref().rsplit('/');
        let (rest, shard) = (names.next()?, names.next()?);
        format!("{shard}{rest}").parse().ok()
    }

    /// A name for bytes that nobody else uses.
    pub fn fresh_data(&self, digest: &Digest) -> Path {
        let (shard, rest) = split(digest);
        self.at(&format!("data/{shard}/{rest}/{}", uuid()))
    }

    pub fn data(&self) -> Path {
        self.at("data")
    }

    /// Digest in the name of an object with bytes.
    pub fn data_digest(&self, path: &Path) -> Option<Digest> {
        let mut names = path.as_ref().rsplit('/').skip(1);
        let (rest, shard) = (names.next()?, names.next()?);
        format!("{shard}{rest}").parse().ok()
    }

    pub fn upload(&self, id: UploadKey) -> Path {
        self.at(&format!("uploads/{id}"))
    }

    pub fn uploads(&self) -> Path {
        self.at("uploads")
    }
}

fn split(digest: &Digest) -> (String, String) {
    let mut shard = hex::encode(digest.as_bytes());
    let rest = shard.split_off(2);
    (shard, rest)
}

pub(super) fn uuid() -> String {
    uuid::Uuid::now_v7().simple().to_string()
}

/// Says that a blob is complete.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Entry {
    /// Object with the bytes.
    pub object: String,
    pub size: u64,
    /// On its way out: not there for anybody.
    #[serde(default)]
    pub removing: bool,
    /// Another value makes another ETag.
    pub mark: String,
}

impl Entry {
    pub fn path(&self) -> Path {
        Path::from(self.object.as_str())
    }
}

/// How far an upload is. Every change is a conditional write, so that two replicas never both believe to be the writer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Upload {
    /// Declared size, bytes.
    pub size: u64,
    /// Size of every part but the last, bytes.
    pub part_bytes: u64,
    /// Object that the parts become.
    pub object: String,
    /// Multipart upload at the store; recorded here before its first part is sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub multipart: Option<String>,
    /// ETags of the acknowledged parts, from the first on without a gap.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<String>,
    /// Bytes behind the last whole part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tail: Option<Tail>,
    /// Its entry is being written.
    #[serde(default)]
    pub publishing: bool,
    /// Given up: its bytes are being removed.
    #[serde(default)]
    pub removing: bool,
    /// Another value makes another ETag, and cuts off whoever wrote with the one before.
    pub mark: String,
}

/// Bytes too few for a part, in an object of their own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Tail {
    pub object: String,
    pub bytes: u64,
}

impl Upload {
    pub fn new(size: u64, part_bytes: u64, object: &Path) -> Upload {
        let needed = size.div_ceil(MOST_PARTS).div_ceil(MIB) * MIB;
        Upload {
            size,
            part_bytes: part_bytes.max(needed),
            object: object.to_string(),
            multipart: None,
            parts: Vec::new(),
            tail: None,
            publishing: false,
            removing: false,
            mark: uuid(),
        }
    }

    /// Whether it is too small for a multipart upload: its only part is the tail.
    pub fn single(&self) -> bool {
        self.size <= self.part_bytes
    }

    /// Bytes in whole parts.
    pub fn in_parts(&self) -> u64 {
        (self.parts.len() as u64 * self.part_bytes).min(self.size)
    }

    /// Durable bytes.
    pub fn committed(&self) -> u64 {
        (self.in_parts() + self.tail.as_ref().map_or(0, |t| t.bytes)).min(self.size)
    }

    pub fn path(&self) -> Path {
        Path::from(self.object.as_str())
    }

    /// The object that has all bytes once the upload is whole and assembled.
    pub fn whole(&self) -> Path {
        let tail = self.tail_path().filter(|_| self.single());
        tail.unwrap_or_else(|| self.path())
    }

    pub fn tail_path(&self) -> Option<Path> {
        self.tail.as_ref().map(|t| Path::from(t.object.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_blob_fits_into_the_most_parts() {
        let object = Path::from("x");
        for size in [0, 1, 8 << 20, 64 << 30, 5 << 40] {
            let upload = Upload::new(size, 8 << 20, &object);
            assert!(size.div_ceil(upload.part_bytes) <= MOST_PARTS, "{size}");
            assert_eq!(upload.part_bytes % MIB, 0);
        }
        assert_eq!(Upload::new(64 << 30, 8 << 20, &object).part_bytes, 8 << 20);
    }

    #[test]
    fn names_tell_their_digest() {
        let digest = Digest::of(b"x");
        for prefix in ["", "hops", "/a/b/"] {
            let layout = Layout::new(prefix);
            let (entry, data) = (layout.entry(&digest), layout.fresh_data(&digest));
            assert_eq!(layout.entry_digest(&entry), Some(digest));
            assert_eq!(layout.data_digest(&data), Some(digest));
            assert!(entry.as_ref().starts_with(prefix.trim_matches('/')));
            assert!(entry.prefix_matches(&layout.entries(digest.as_bytes()[0])));
            assert!(data.prefix_matches(&layout.data()));
        }
    }
}
