//! Uploads finished a short while ago, so that a Finish whose answer was lost gets the same answer again.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use cipherhop_proto::{AccountId, Digest, UploadId};

const KEPT: usize = 4096;

/// A finished upload.
#[derive(Clone, Copy, Debug)]
pub(super) struct Finished {
    pub account: AccountId,
    pub digest: Digest,
    pub size: u64,
}

/// The last few thousand finished uploads. After a restart of the server a repeated Finish gets UPLOAD_NOT_FOUND,
/// and opening the upload again says that the blob is complete.
#[derive(Default)]
pub(super) struct RecentUploads {
    state: Mutex<(HashMap<UploadId, Finished>, VecDeque<UploadId>)>,
}

impl RecentUploads {
    pub fn insert(&self, id: UploadId, finished: Finished) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (known, order) = &mut *state;
        if known.insert(id, finished).is_none() {
            order.push_back(id);
        }
        while order.len() > KEPT {
            if let Some(oldest) = order.pop_front() {
                known.remove(&oldest);
            }
        }
    }

    pub fn get(&self, id: UploadId) -> Option<Finished> {
        self.state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .0
            .get(&id)
            .copied()
    }
}
