//! The client side that worker and owner share: one way to connect, to read refusals, to wait, and to move blobs.

mod backoff;
mod chunks;
mod connect;
mod download;
mod error;
mod tls;
mod upload;

pub use backoff::Backoff;
pub use connect::{
    AuthChannel, BearerToken, ConnectOptions, Connection, LONG_POLL_DEADLINE, UNARY_DEADLINE,
    endpoint, unary,
};
pub use download::download;
pub use error::{ClientError, Refusal};
pub use tls::TlsFailure;
pub use upload::{Source, upload};

use std::time::Duration;

use crate::reason::Retry;

/// The attempt in whose name a volunteer moves a blob; the key holder has none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptRef {
    /// 16 bytes.
    pub attempt_id: Vec<u8>,
    /// The lease's fence.
    pub epoch: u64,
}

/// How a blob is moved.
#[derive(Clone, Debug)]
pub struct TransferPolicy {
    /// Bytes of one message, at most 1 MiB.
    pub frame_bytes: usize,
    /// Bytes sent before the server is asked to acknowledge them as durable.
    pub segment_bytes: u64,
    /// A transfer in which no byte moves for this long is broken off and resumed.
    pub idle: Duration,
    /// Tries in a row without a new byte before the error is returned.
    pub max_stalls: u32,
    /// Waiting between tries.
    pub backoff: Backoff,
}

impl Default for TransferPolicy {
    fn default() -> Self {
        TransferPolicy {
            frame_bytes: crate::FRAME_BYTES,
            segment_bytes: 32 << 20,
            idle: Duration::from_secs(60),
            max_stalls: 8,
            backoff: Backoff::default(),
        }
    }
}

/// Told how many bytes of the blob are there (download) or durable on the coordinator (upload).
pub type Progress<'a> = &'a (dyn Fn(u64) + Send + Sync);

/// Counts tries without progress and says whether, and how long, to wait before the next one.
pub(crate) struct Stalls {
    policy: TransferPolicy,
    in_a_row: u32,
}

impl Stalls {
    pub(crate) fn new(policy: &TransferPolicy) -> Self {
        Stalls {
            policy: policy.clone(),
            in_a_row: 0,
        }
    }

    /// Waits before another try, or returns the error when it is final or the patience is used up.
    pub(crate) async fn wait(
        &mut self,
        error: ClientError,
        progressed: bool,
    ) -> Result<(), ClientError> {
        if progressed {
            self.in_a_row = 0;
            self.policy.backoff.reset();
        }
        self.in_a_row += 1;
        if self.in_a_row > self.policy.max_stalls {
            return Err(error);
        }
        match error.retry() {
            Retry::Same | Retry::BackOff => {
                let pause = self.policy.backoff.next(error.retry_after());
                tokio::time::sleep(pause).await;
                Ok(())
            }
            Retry::NextHop | Retry::AfterChange | Retry::Never => Err(error),
        }
    }
}
