//! Rate limits: by token for looking, administration and asking for work; by address for callers without a good token.
//! Finished work is never limited: Submit, Sync, Fail, Release and the moving of blobs do not come here.

use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU32, Ordering};

use cipherhop_proto::status::status_with_retry;
use cipherhop_proto::{Reason, TokenId};
use governor::clock::{Clock as _, DefaultClock};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use tonic::Status;

use crate::config;

/// Checks between two sweeps of keys that have their full allowance again.
const SWEEP_EVERY: u32 = 4096;

/// Allowances of every caller.
pub(super) struct Limits {
    tokens: Option<DefaultKeyedRateLimiter<TokenId>>,
    addresses: Option<DefaultKeyedRateLimiter<IpAddr>>,
    clock: DefaultClock,
    checks: AtomicU32,
}

impl Limits {
    pub fn new(config: &config::Limits) -> Limits {
        let quota = |per_second: u32, burst: u32| {
            let quota = Quota::per_second(NonZeroU32::new(per_second)?);
            Some(quota.allow_burst(NonZeroU32::new(burst)?))
        };
        Limits {
            tokens: quota(config.calls_per_second, config.calls_burst).map(RateLimiter::keyed),
            addresses: quota(config.unknown_per_second, config.unknown_burst)
                .map(RateLimiter::keyed),
            clock: DefaultClock::default(),
            checks: AtomicU32::new(0),
        }
    }

    /// One call of a token that is known.
    pub fn token(&self, token: TokenId) -> Result<(), Status> {
        self.sweep();
        let Some(limiter) = &self.tokens else {
            return Ok(());
        };
        limiter
            .check_key(&token)
            .map_err(|not| self.refusal(not.wait_time_from(self.clock.now())))
    }

    /// One call without a good token. Callers on this machine share its loopback address with a proxy in front, so
    /// they are not told apart and not limited.
    pub fn address(&self, address: Option<IpAddr>) -> Result<(), Status> {
        self.sweep();
        let (Some(limiter), Some(address)) = (&self.addresses, address) else {
            return Ok(());
        };
        let address = network(address);
        if address.is_loopback() {
            return Ok(());
        }
        limiter
            .check_key(&address)
            .map_err(|not| self.refusal(not.wait_time_from(self.clock.now())))
    }

    fn refusal(&self, wait: std::time::Duration) -> Status {
        status_with_retry(Reason::RateLimited, "", Some(wait))
    }

    /// Forgets keys that have their full allowance, so that strangers cannot fill the memory.
    fn sweep(&self) {
        if self.checks.fetch_add(1, Ordering::Relaxed) % SWEEP_EVERY == SWEEP_EVERY - 1 {
            if let Some(limiter) = &self.tokens {
                limiter.retain_recent();
            }
            if let Some(limiter) = &self.addresses {
                limiter.retain_recent();
            }
        }
    }
}

/// Who counts as one stranger: an IPv4 address, or the 64 bits of a network of IPv6.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) if !v6.is_loopback() => {
            let bits = v6.to_bits() & !u128::from(u64::MAX);
            IpAddr::V6(bits.into())
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use cipherhop_proto::status::{reason_of, retry_after_of};

    use super::*;

    fn tight() -> Limits {
        Limits::new(&config::Limits {
            calls_per_second: 1,
            calls_burst: 3,
            unknown_per_second: 1,
            unknown_burst: 3,
        })
    }

    #[test]
    fn an_allowance_is_one_callers_and_the_refusal_says_how_long_to_wait() {
        let limits = tight();
        let (ada, bob) = (TokenId::generate(), TokenId::generate());
        for _ in 0..3 {
            limits.token(ada).unwrap();
        }
        let refused = limits.token(ada).unwrap_err();
        assert_eq!(reason_of(&refused), Some(Reason::RateLimited));
        let wait = retry_after_of(&refused).unwrap();
        assert!(!wait.is_zero() && wait.as_secs() <= 1, "{wait:?}");
        limits.token(bob).unwrap();
    }

    #[test]
    fn strangers_are_counted_by_network_and_this_machine_is_not() {
        let limits = tight();
        let at = |text: &str| Some(text.parse().unwrap());
        for host in ["2001:db8::1", "2001:db8::2", "2001:db8::3"] {
            limits.address(at(host)).unwrap();
        }
        assert!(limits.address(at("2001:db8::4")).is_err());
        limits.address(at("2001:db8:0:1::4")).unwrap();
        for _ in 0..3 {
            limits.address(at("::ffff:192.0.2.1")).unwrap();
        }
        assert!(limits.address(at("192.0.2.1")).is_err());
        for _ in 0..100 {
            limits.address(at("127.0.0.1")).unwrap();
            limits.address(at("::1")).unwrap();
        }
    }

    #[test]
    fn zero_means_no_limit() {
        let limits = Limits::new(&config::Limits {
            calls_per_second: 0,
            unknown_per_second: 0,
            ..config::Limits::default()
        });
        let ada = TokenId::generate();
        for _ in 0..1000 {
            limits.token(ada).unwrap();
        }
    }
}
