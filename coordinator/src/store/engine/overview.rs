//! Everything at a glance.

use std::time::Duration;

use super::Work;
use crate::domain::hop::HopState;
use crate::domain::time::Timestamp;
use crate::store::types::{Overview, Result};

impl Work {
    pub(super) async fn overview(&mut self, now: Timestamp) -> Result<Overview> {
        let mut view = Overview::default();
        for chain in self.tx.chains().await? {
            *view.chains.entry(chain.state.name()).or_default() += 1;
            let last = self.tx.last_sequence(chain.id).await?;
            view.newest_event = view.newest_event.max(last);
        }
        for (_, hop) in self.tx.active_heads().await? {
            *view.hops.entry(hop.state.name()).or_default() += 1;
            let since = hop.not_before.map_or(hop.since, |t| t.max(hop.since));
            match hop.state {
                HopState::Ready => longer(&mut view.oldest_ready, now.since(since)),
                HopState::Verifying => longer(&mut view.oldest_verifying, now.since(since)),
                _ => {}
            }
        }
        for device in self.tx.devices().await? {
            *view.devices.entry(device.state.name()).or_default() += 1;
        }
        for lease in self.tx.live_attempts().await? {
            view.leases += 1;
            view.silent += u64::from(lease.silent);
            longer(&mut view.oldest_lease, now.since(lease.leased));
            longer(&mut view.longest_silence, now.since(lease.last_seen));
        }
        view.rechecks = self.tx.rechecks().await?.len() as u64;
        view.uploads = self.tx.uploads().await?.len() as u64;
        Ok(view)
    }
}

fn longer(longest: &mut Duration, time: Duration) {
    *longest = time.max(*longest);
}
