//! Exponential back-off with jitter, so that a thousand workers do not come back at the same moment.

use std::time::Duration;

/// Doubles from `base` to `cap`; each wait is drawn from the upper half of the current span.
#[derive(Clone, Debug)]
pub struct Backoff {
    base: Duration,
    cap: Duration,
    step: u32,
}

impl Default for Backoff {
    fn default() -> Self {
        Backoff::new(Duration::from_millis(500), Duration::from_secs(30))
    }
}

impl Backoff {
    /// Waits grow from `base` to `cap`.
    pub fn new(base: Duration, cap: Duration) -> Self {
        Backoff { base, cap, step: 0 }
    }

    /// The next wait. A server's hint (RetryInfo) is never undercut; up to a quarter is added to it.
    pub fn next(&mut self, hint: Option<Duration>) -> Duration {
        let span = self
            .base
            .saturating_mul(1u32 << self.step.min(20))
            .min(self.cap);
        self.step = self.step.saturating_add(1);
        let jitter: f64 = rand::random();
        match hint {
            Some(hint) => hint + hint.min(self.cap).mul_f64(0.25 * jitter),
            None => span.mul_f64(0.5 + 0.5 * jitter),
        }
    }

    /// Starts again from `base`, after a success.
    pub fn reset(&mut self) {
        self.step = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_the_cap_and_a_hint_is_never_undercut() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
        let first = backoff.next(None);
        assert!(first >= Duration::from_millis(50) && first <= Duration::from_millis(100));
        for _ in 0..100 {
            assert!(backoff.next(None) <= Duration::from_secs(2));
        }
        assert!(backoff.next(None) >= Duration::from_secs(1));
        assert!(backoff.next(Some(Duration::from_secs(7))) >= Duration::from_secs(7));
        backoff.reset();
        assert!(backoff.next(None) <= Duration::from_millis(100));
    }
}
