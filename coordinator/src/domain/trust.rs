//! What a device's past results say about it.

use cipherhop_proto::{AccountId, DeviceId};

use super::time::Timestamp;

/// Valid results in a row that make a device trusted.
pub const TRUSTED_AFTER: u32 = 10;
/// Refuted results in a row that put a device into quarantine.
pub const QUARANTINE_AFTER: u32 = 3;

/// How far a device is trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeviceState {
    /// No verdict yet.
    New,
    /// Some valid results.
    Probation,
    /// At least [`TRUSTED_AFTER`] valid results in a row.
    Trusted,
    /// Gets no work until an operator lifts it.
    Quarantined,
    /// Gets no work.
    Banned,
}

impl DeviceState {
    /// The state's name as rows hold it; in lower case on the wire.
    pub const fn name(self) -> &'static str {
        match self {
            Self::New => "New",
            Self::Probation => "Probation",
            Self::Trusted => "Trusted",
            Self::Quarantined => "Quarantined",
            Self::Banned => "Banned",
        }
    }

    /// The device may take work.
    pub const fn may_work(self) -> bool {
        !matches!(self, Self::Quarantined | Self::Banned)
    }
}

/// A verdict on one result of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Accepted.
    Valid,
    /// Refuted or malformed.
    Invalid,
}

/// A device's row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Its id.
    pub id: DeviceId,
    /// Its account.
    pub account: AccountId,
    /// The account's name.
    pub account_name: String,
    /// Shown to observers.
    pub display_name: String,
    /// How far it is trusted.
    pub state: DeviceState,
    /// Valid results since the last refuted one.
    pub consecutive_valid: u32,
    /// Refuted results since the last valid one.
    pub consecutive_invalid: u32,
    /// An operator's words at the last quarantine or its lifting.
    pub note: String,
    /// When it enrolled.
    pub created: Timestamp,
    /// Last call.
    pub last_seen: Timestamp,
}

impl Device {
    /// Counts a verdict: ten valid ones in a row make it Trusted, one refuted one takes that away,
    /// three in a row put it into quarantine.
    pub fn judge(&mut self, verdict: Verdict) {
        match verdict {
            Verdict::Valid => {
                self.consecutive_valid = self.consecutive_valid.saturating_add(1);
                self.consecutive_invalid = 0;
            }
            Verdict::Invalid => {
                self.consecutive_valid = 0;
                self.consecutive_invalid = self.consecutive_invalid.saturating_add(1);
            }
        }
        if !self.state.may_work() {
            return;
        }
        self.state = if self.consecutive_invalid >= QUARANTINE_AFTER {
            DeviceState::Quarantined
        } else if self.consecutive_valid >= TRUSTED_AFTER {
            DeviceState::Trusted
        } else {
            DeviceState::Probation
        };
    }
}
