//! Hops as people speak of them: `7`, `5-25`, `1,3,9-12`.

use std::ops::RangeInclusive;

/// Most parts of a list.
const PARTS: usize = 64;

/// Some hops; all where the text is empty. `None` for text that names none.
pub(super) fn parse(text: &str) -> Option<Vec<RangeInclusive<u32>>> {
    if text.trim().is_empty() {
        return Some(vec![0..=u32::MAX]);
    }
    let parts: Vec<&str> = text.split(',').take(PARTS + 1).collect();
    if parts.len() > PARTS {
        return None;
    }
    parts
        .into_iter()
        .map(|part| {
            let (low, high) = part.split_once('-').unwrap_or((part, part));
            let (low, high) = (low.trim().parse().ok()?, high.trim().parse().ok()?);
            (low <= high).then_some(low..=high)
        })
        .collect()
}

/// Whether the hop is among them.
pub(super) fn holds(ranges: &[RangeInclusive<u32>], hop: u32) -> bool {
    ranges.iter().any(|range| range.contains(&hop))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hops_are_read_as_people_write_them() {
        let held = |text: &str| -> Vec<u32> {
            let ranges = parse(text).unwrap();
            (0..12).filter(|h| holds(&ranges, *h)).collect()
        };
        assert_eq!(held("5-7"), [5, 6, 7]);
        assert_eq!(held(" 1, 3 ,9 - 11"), [1, 3, 9, 10, 11]);
        assert_eq!(held("").len(), 12);
        for bad in ["x", "5-", "7-5", "1,,2", "-1", &"1,".repeat(100)] {
            assert!(parse(bad).is_none(), "{bad}");
        }
    }
}
