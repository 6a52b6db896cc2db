//! What a device's past results say about it.

use std::time::Duration;

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

/// How far a device may be trusted at one moment, as the rules on hops see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Standing {
    /// Its state.
    pub state: DeviceState,
    /// Valid results since the last refuted one.
    pub consecutive_valid: u32,
}

impl Standing {
    /// A device nothing is known about.
    pub const NEW: Self = Self {
        state: DeviceState::New,
        consecutive_valid: 0,
    };

    /// Its result may count without another account's.
    pub fn may_pass_alone(self) -> bool {
        self.state == DeviceState::Trusted && self.consecutive_valid >= TRUSTED_AFTER
    }

    /// Whether this one does: with probability 1 - 1/CV for CV valid results in a row. `draw` is uniform,
    /// made after the result is fixed, and known to nobody else.
    pub fn passes_alone(self, draw: u32) -> bool {
        let product = u64::from(draw) * u64::from(self.consecutive_valid);
        self.may_pass_alone() && product > u64::from(u32::MAX)
    }

    /// Share of the device's work that is a known-answer hop, in thousandths.
    pub const fn probe_permille(self, odds: ProbeOdds) -> u32 {
        match self.state {
            DeviceState::Trusted => odds.trusted_permille,
            _ => odds.fresh_permille,
        }
    }
}

/// How often known-answer hops are mixed in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProbeOdds {
    /// For devices that are not Trusted, in thousandths.
    pub fresh_permille: u32,
    /// For Trusted devices, in thousandths.
    pub trusted_permille: u32,
}

impl ProbeOdds {
    /// No known-answer hops.
    pub const NEVER: Self = Self {
        fresh_permille: 0,
        trusted_permille: 0,
    };
}

impl Default for ProbeOdds {
    fn default() -> Self {
        Self {
            fresh_permille: 50,
            trusted_permille: 10,
        }
    }
}

/// A verdict on one result of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Accepted.
    Valid,
    /// Accepted, and the right answer was known before.
    Proven,
    /// Refuted or malformed.
    Invalid,
}

/// How long a device takes for a hop, compared with others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// Its time over the middle of the chain's accepted attempts, in thousandths.
    pub permille: u32,
    /// When it was measured.
    pub at: Timestamp,
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
    /// When it last handed in a result whose right answer was known before.
    pub proven: Option<Timestamp>,
    /// How fast it is; `None` while unknown.
    pub pace: Option<Pace>,
    /// An operator lets it run single steps of disputed hops.
    pub referee: bool,
    /// An operator's words at the last quarantine or its lifting.
    pub note: String,
    /// When it enrolled.
    pub created: Timestamp,
    /// Last call.
    pub last_seen: Timestamp,
}

impl Pace {
    /// With one more measurement, which counts for half.
    pub fn with(known: Option<Self>, took: Duration, middle: Duration, at: Timestamp) -> Self {
        let ratio = took.as_micros().saturating_mul(1000) / middle.as_micros().max(1);
        let ratio = u32::try_from(ratio).unwrap_or(u32::MAX);
        let permille = known.map_or(ratio, |known| known.permille.midpoint(ratio));
        Self { permille, at }
    }
}

impl Device {
    /// How far it may be trusted now.
    pub const fn standing(&self) -> Standing {
        Standing {
            state: self.state,
            consecutive_valid: self.consecutive_valid,
        }
    }

    /// Counts a verdict: ten valid ones in a row make it Trusted, one refuted one takes that away,
    /// three in a row put it into quarantine.
    pub fn judge(&mut self, verdict: Verdict, now: Timestamp) {
        if verdict == Verdict::Proven {
            self.proven = self.proven.max(Some(now));
        }
        match verdict {
            Verdict::Valid | Verdict::Proven => {
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
