//! Byte counts and durations as people write and read them.

/// 1536 -> "1.5 KiB".
pub fn bytes(count: u64) -> String {
    const NAMES: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = count as f64;
    let mut index = 0;
    while value >= 1024.0 && index + 1 < NAMES.len() {
        value /= 1024.0;
        index += 1;
    }
    if index == 0 {
        format!("{count} B")
    } else {
        format!("{value:.1} {}", NAMES[index])
    }
}

/// 90 -> "1 min 30 s".
pub fn seconds(value: f64) -> String {
    let whole = value.round().max(0.0) as u64;
    match whole {
        0..60 if value < 9.95 => format!("{value:.1} s"),
        0..60 => format!("{whole} s"),
        60..3600 => format!("{} min {} s", whole / 60, whole % 60),
        _ => format!("{} h {} min", whole / 3600, whole % 3600 / 60),
    }
}

/// A range of seconds; "unknown" while both are zero.
pub fn eta(low: f64, high: f64) -> String {
    if low <= 0.0 && high <= 0.0 {
        "unknown".into()
    } else if high - low < 1.0 {
        seconds(high)
    } else {
        format!("{} to {}", seconds(low), seconds(high))
    }
}

/// "40GiB", "500 MB", "123" -> bytes.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let split = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let factor: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" => 1000,
        "m" | "mb" => 1_000_000,
        "g" | "gb" => 1_000_000_000,
        "t" | "tb" => 1_000_000_000_000,
        "kib" => 1 << 10,
        "mib" => 1 << 20,
        "gib" => 1 << 30,
        "tib" => 1 << 40,
        _ => return Err(format!("{text:?}: sizes are written as 40GiB or 500MB")),
    };
    let value: f64 = number
        .parse()
        .map_err(|_| format!("{text:?}: sizes are written as 40GiB or 500MB"))?;
    let product = value * factor as f64;
    if product.is_finite() && (0.0..=9.0e18).contains(&product) {
        Ok(product as u64)
    } else {
        Err(format!("{text:?} is too large"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_read_well() {
        assert_eq!(
            (bytes(5), bytes(1536)),
            ("5 B".to_owned(), "1.5 KiB".to_owned())
        );
        assert_eq!(seconds(90.0), "1 min 30 s");
        assert_eq!(seconds(1.25), "1.2 s");
        assert_eq!(seconds(7260.0), "2 h 1 min");
        assert_eq!(eta(0.0, 0.0), "unknown");
        assert_eq!(eta(30.0, 45.0), "30 s to 45 s");
        assert_eq!(parse_bytes("40GiB"), Ok(40 << 30));
        assert_eq!(parse_bytes("1.5 kb"), Ok(1500));
        assert_eq!(parse_bytes("12"), Ok(12));
        for bad in ["", "GiB", "4 parsecs", "1e400GiB", "-3"] {
            assert!(parse_bytes(bad).is_err(), "{bad}");
        }
    }
}
