//! Exact text form of f64: `0x1.8000000000000p+3`. Used by the calibration file, so that every reader gets the same bits.

use serde::{Deserialize, Deserializer, Serializer, de::Error};

/// Exact hexadecimal text of a finite value.
pub fn format(value: f64) -> String {
    let bits = value.to_bits();
    let sign = if bits >> 63 == 1 { "-" } else { "" };
    let exponent = ((bits >> 52) & 0x7ff) as i32;
    let fraction = bits & ((1 << 52) - 1);
    match (exponent, fraction) {
        (0, 0) => format!("{sign}0x0p+0"),
        (0, _) => format!("{sign}0x0.{fraction:013x}p-1022"),
        _ => {
            let digits = format!("{fraction:013x}");
            let digits = digits.trim_end_matches('0');
            let dot = if digits.is_empty() { "" } else { "." };
            format!("{sign}0x1{dot}{digits}p{:+}", exponent - 1023)
        }
    }
}

/// Reads what [`format`] writes; `None` for anything else, infinities and NaN included.
pub fn parse(text: &str) -> Option<f64> {
    let (negative, rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let (mantissa, exponent) = rest.strip_prefix("0x")?.split_once('p')?;
    let (lead, digits) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    if digits.len() > 13
        || !digits
            .bytes()
            .all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
        || exponent.len() > 6
    {
        return None;
    }
    let exponent: i32 = exponent.parse().ok()?;
    let fraction = if digits.is_empty() {
        0
    } else {
        u64::from_str_radix(digits, 16).ok()? << (4 * (13 - digits.len()))
    };
    let bits = match lead {
        "1" if (-1022..=1023).contains(&exponent) => (((exponent + 1023) as u64) << 52) | fraction,
        "0" if fraction == 0 && exponent == 0 => 0,
        "0" if fraction != 0 && exponent == -1022 => fraction,
        _ => return None,
    };
    let value = f64::from_bits(bits | (u64::from(negative) << 63));
    // One spelling per value, so that equal calibrations have equal digests.
    (format(value) == text).then_some(value)
}

/// Serde adapter for one value.
pub fn serialize<S: Serializer>(value: &f64, out: S) -> Result<S::Ok, S::Error> {
    if !value.is_finite() {
        return Err(serde::ser::Error::custom("not a finite number"));
    }
    out.serialize_str(&format(*value))
}

/// Serde adapter for one value.
pub fn deserialize<'de, D: Deserializer<'de>>(input: D) -> Result<f64, D::Error> {
    let text = String::deserialize(input)?;
    parse(&text).ok_or_else(|| D::Error::custom(format!("not a hexadecimal number: {text:?}")))
}

/// Serde adapter for lists.
pub mod list {
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    /// Serde adapter for a list of values.
    pub fn serialize<S: Serializer>(values: &[f64], out: S) -> Result<S::Ok, S::Error> {
        if values.iter().any(|v| !v.is_finite()) {
            return Err(serde::ser::Error::custom("not a finite number"));
        }
        values
            .iter()
            .map(|v| super::format(*v))
            .collect::<Vec<_>>()
            .serialize(out)
    }

    /// Serde adapter for a list of values.
    pub fn deserialize<'de, D: Deserializer<'de>>(input: D) -> Result<Vec<f64>, D::Error> {
        Vec::<String>::deserialize(input)?
            .iter()
            .map(|t| {
                super::parse(t)
                    .ok_or_else(|| D::Error::custom(format!("not a hexadecimal number: {t:?}")))
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_values_have_the_usual_spelling() {
        assert_eq!(format(1.0), "0x1p+0");
        assert_eq!(format(-12.0), "-0x1.8p+3");
        assert_eq!(format(0.1), "0x1.999999999999ap-4");
        assert_eq!(parse("0x1.8p+3"), Some(12.0));
        for bad in [
            "",
            "1.0",
            "0x2p+0",
            "0x1p+1024",
            "0x1.p+0",
            "0x1.80p+3",
            "0x1p3",
            "nan",
            "0x1.8p+3 ",
            "0xp+0",
            "0x1.8p+99999999999",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn every_finite_value_survives(bits in any::<u64>()) {
            let value = f64::from_bits(bits);
            prop_assume!(value.is_finite());
            prop_assert_eq!(parse(&format(value)).map(f64::to_bits), Some(bits));
        }
        #[test]
        fn any_text_is_handled(text in "\\PC{0,30}") { let _ = parse(&text); }
    }
}
