//! Hours of the day as people write them: `22:00-07:00`, several with commas, in this machine's local time.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

const DAY: u16 = 24 * 60;

/// A minute of the day, 0 to 1439.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Minute(u16);

impl Minute {
    /// Hour and minute; wraps around midnight.
    pub fn new(hour: u16, minute: u16) -> Minute {
        Minute((hour * 60 + minute) % DAY)
    }

    /// Now, in the time zone of this machine (or of `TZ`).
    pub fn now() -> Minute {
        let now = jiff::ZonedDateTime::now();
        Minute::new(
            now.hour().unsigned_abs().into(),
            now.minute().unsigned_abs().into(),
        )
    }
}

impl fmt::Display for Minute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02}:{:02}", self.0 / 60, self.0 % 60)
    }
}

/// From the first minute up to, not including, the second; over midnight where the second is not later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    from: Minute,
    /// 1440 stands for the end of the day.
    to: u16,
}

impl Span {
    fn contains(self, at: Minute) -> bool {
        if self.from.0 < self.to {
            (self.from.0..self.to).contains(&at.0)
        } else {
            at.0 >= self.from.0 || at.0 < self.to
        }
    }
}

/// When to work. None given means always.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Hours(Vec<Span>);

impl Hours {
    /// Whether to work then.
    pub fn contains(&self, at: Minute) -> bool {
        self.0.is_empty() || self.0.iter().any(|span| span.contains(at))
    }

    /// When work next begins, from a minute at which there is none.
    pub fn next_begin(&self, at: Minute) -> Option<Minute> {
        let wait = |begin: Minute| (begin.0 + DAY - at.0) % DAY;
        self.0
            .iter()
            .map(|span| span.from)
            .min_by_key(|begin| wait(*begin))
    }
}

impl fmt::Display for Hours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("always");
        }
        for (index, span) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(
                f,
                "{comma}{}-{:02}:{:02}",
                span.from,
                span.to / 60,
                span.to % 60
            )?;
        }
        Ok(())
    }
}

/// Text that names no hours.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("hours are written as 22:00-07:00, several with commas, or always")]
pub struct ParseHoursError;

fn minutes(text: &str) -> Result<u16, ParseHoursError> {
    let number = |part: &str, digits: std::ops::RangeInclusive<usize>| {
        let fine = digits.contains(&part.len()) && part.bytes().all(|b| b.is_ascii_digit());
        fine.then(|| part.parse::<u16>().ok())
            .flatten()
            .ok_or(ParseHoursError)
    };
    let (hour, minute) = text.trim().split_once(':').ok_or(ParseHoursError)?;
    let (hour, minute) = (number(hour, 1..=2)?, number(minute, 2..=2)?);
    let sum = hour * 60 + minute;
    if minute < 60 && sum <= DAY {
        Ok(sum)
    } else {
        Err(ParseHoursError)
    }
}

impl FromStr for Hours {
    type Err = ParseHoursError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.trim() == "always" {
            return Ok(Hours::default());
        }
        let span = |part: &str| {
            let (from, to) = part.split_once('-').ok_or(ParseHoursError)?;
            let (from, to) = (minutes(from)?, minutes(to)?);
            // The same time twice could mean a day or nothing.
            if from == to || from == DAY {
                return Err(ParseHoursError);
            }
            Ok(Span {
                from: Minute(from),
                to,
            })
        };
        text.split(',')
            .map(span)
            .collect::<Result<_, _>>()
            .map(Hours)
    }
}

impl TryFrom<String> for Hours {
    type Error = ParseHoursError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Hours> for String {
    fn from(hours: Hours) -> String {
        hours.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn hours_may_go_over_midnight_and_be_several() {
        let hours: Hours = "22:00-7:00, 12:30-13:15".parse().unwrap();
        assert_eq!(hours.to_string(), "22:00-07:00, 12:30-13:15");
        for (hour, minute, inside) in [
            (21, 59, false),
            (22, 0, true),
            (23, 59, true),
            (0, 0, true),
            (6, 59, true),
            (7, 0, false),
            (12, 30, true),
            (13, 15, false),
        ] {
            assert_eq!(
                hours.contains(Minute::new(hour, minute)),
                inside,
                "{hour}:{minute}"
            );
        }
        assert_eq!(
            hours.next_begin(Minute::new(8, 0)),
            Some(Minute::new(12, 30))
        );
        assert_eq!(
            hours.next_begin(Minute::new(13, 15)),
            Some(Minute::new(22, 0))
        );
        let day: Hours = "00:00-24:00".parse().unwrap();
        assert!(day.contains(Minute::new(23, 59)) && day.contains(Minute::new(0, 0)));
        assert!(Hours::default().contains(Minute::new(3, 0)));
        assert_eq!("always".parse(), Ok(Hours::default()));
    }

    #[test]
    fn what_names_no_hours_is_refused() {
        for bad in [
            "",
            "7",
            "7-9",
            "25:00-26:00",
            "07:60-08:00",
            "08:00-08:00",
            "24:00-01:00",
            "1:5-2:00",
            "-1:00-2:00",
            "1:00-2:00,",
        ] {
            assert!(bad.parse::<Hours>().is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn what_is_shown_is_read_back(spans in proptest::collection::vec((0u16..DAY, 0u16..=DAY), 0..4), at in 0u16..DAY) {
            prop_assume!(spans.iter().all(|(from, to)| from != to));
            let hours = Hours(spans.iter().map(|(from, to)| Span { from: Minute(*from), to: *to }).collect());
            let again: Hours = hours.to_string().parse().unwrap();
            prop_assert_eq!(&again, &hours);
            prop_assert_eq!(again.contains(Minute(at)), hours.contains(Minute(at)));
        }
    }
}
