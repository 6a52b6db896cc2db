//! Hop ranges as people write them: `7` or `5-25`, both ends included.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// An inclusive range of hops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HopRange {
    /// First hop.
    pub first: u32,
    /// Last hop, not below `first`.
    pub last: u32,
}

impl HopRange {
    /// Whether the hop lies in the range.
    pub fn contains(&self, hop: u32) -> bool {
        (self.first..=self.last).contains(&hop)
    }
}

impl fmt::Display for HopRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last {
            write!(f, "{}", self.first)
        } else {
            write!(f, "{}-{}", self.first, self.last)
        }
    }
}

/// Text that is not a hop range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("hops are written as 7 or 5-25, first not above last")]
pub struct ParseRangeError;

impl FromStr for HopRange {
    type Err = ParseRangeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = |part: &str| {
            let digits = !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
            if digits {
                part.parse::<u32>().map_err(|_| ParseRangeError)
            } else {
                Err(ParseRangeError)
            }
        };
        let (first, last) = match text.trim().split_once('-') {
            Some((first, last)) => (number(first.trim())?, number(last.trim())?),
            None => (number(text.trim())?, number(text.trim())?),
        };
        if first > last {
            Err(ParseRangeError)
        } else {
            Ok(HopRange { first, last })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn people_write_one_hop_or_two_ends() {
        assert_eq!("5-25".parse(), Ok(HopRange { first: 5, last: 25 }));
        assert_eq!(" 7 ".parse(), Ok(HopRange { first: 7, last: 7 }));
        assert_eq!("5 - 6".parse(), Ok(HopRange { first: 5, last: 6 }));
        for bad in [
            "",
            "-",
            "5-",
            "-5",
            "6-5",
            "a",
            "1-2-3",
            "+1",
            "4294967296",
            "1..2",
        ] {
            assert_eq!(bad.parse::<HopRange>(), Err(ParseRangeError), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused_and_what_is_shown_is_read_back(text in "\\PC{0,20}", a: u32, b: u32) {
            let _ = text.parse::<HopRange>();
            let range = HopRange { first: a.min(b), last: a.max(b) };
            prop_assert_eq!(range.to_string().parse(), Ok(range));
        }
    }
}
