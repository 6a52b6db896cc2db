//! `manifest.sha256`: the digests of a chain's outputs, one line `hex  hop-NNN.ct` per hop, as `sha256sum -c` reads them.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::Digest;

/// Longest manifest that is read, bytes.
pub const MAX_BYTES: usize = 1 << 20;

/// Why a manifest is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// More than [`MAX_BYTES`].
    #[error("the manifest is longer than {MAX_BYTES} bytes")]
    TooLong,
    /// A line is not `hex  hop-NNN.ct`.
    #[error(
        "line {line}: expected 64 lower-case hexadecimal digits, two spaces and a name like hop-007.ct"
    )]
    Line {
        /// Line number, from 1.
        line: usize,
    },
    /// A hop is named twice.
    #[error("line {line}: hop {hop} was named before")]
    Twice {
        /// Line number, from 1.
        line: usize,
        /// The hop.
        hop: u32,
    },
}

/// File name of a hop's output in an archive.
pub fn file_name(hop: u32) -> String {
    format!("hop-{hop:03}.ct")
}

/// Writes the lines in the order given.
pub fn format(digests: impl IntoIterator<Item = (u32, Digest)>) -> String {
    let mut text = String::new();
    for (hop, digest) in digests {
        let _ = writeln!(text, "{digest}  {}", file_name(hop));
    }
    text
}

/// Reads what [`format`] and `sha256sum` write, and nothing else.
pub fn parse(text: &str) -> Result<BTreeMap<u32, Digest>, ManifestError> {
    if text.len() > MAX_BYTES {
        return Err(ManifestError::TooLong);
    }
    let mut digests = BTreeMap::new();
    let body = text.strip_suffix('\n').unwrap_or(text);
    if body.is_empty() && text.len() <= 1 {
        return Ok(digests);
    }
    for (line, content) in (1..).zip(body.split('\n')) {
        let (hop, digest) = parse_line(content).ok_or(ManifestError::Line { line })?;
        if digests.insert(hop, digest).is_some() {
            return Err(ManifestError::Twice { line, hop });
        }
    }
    Ok(digests)
}

fn parse_line(line: &str) -> Option<(u32, Digest)> {
    let (hex, name) = line.split_once("  ")?;
    let digest: Digest = hex.parse().ok()?;
    let hop: u32 = name
        .strip_prefix("hop-")?
        .strip_suffix(".ct")?
        .parse()
        .ok()?;
    // Only the canonical spelling of both.
    (digest.to_string() == hex && file_name(hop) == name).then_some((hop, digest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_survives_the_round_trip() {
        let digests: BTreeMap<u32, Digest> = [0, 7, 1234]
            .map(|hop| (hop, Digest::of(&[hop as u8])))
            .into();
        let text = format(digests.clone());
        assert!(text.contains("  hop-007.ct\n") && text.contains("  hop-1234.ct\n"));
        assert_eq!(parse(&text).unwrap(), digests);
        assert_eq!(parse(text.trim_end()).unwrap(), digests);
        assert!(parse("").unwrap().is_empty());
    }

    #[test]
    fn every_other_spelling_is_refused_with_its_line() {
        let hex = Digest::of(b"x").to_string();
        let good = format!("{hex}  hop-000.ct");
        let bad = [
            format!("{hex} hop-000.ct"),
            format!("{hex} *hop-000.ct"),
            format!("{}  hop-000.ct", hex.to_uppercase()),
            format!("{hex}  hop-0.ct"),
            format!("{hex}  hop-0000.ct"),
            format!("{hex}  hop-+01.ct"),
            format!("{hex}  hop--01.ct"),
            format!("{hex}  ../hop-000.ct"),
            format!("{hex}  hop-000.ct\r"),
            format!("{hex}  hop-99999999999.ct"),
            format!("{}  hop-000.ct", &hex[1..]),
            "# comment".into(),
            String::new(),
        ];
        for line in bad {
            let text = format!("{good}\n{line}\n");
            assert_eq!(
                parse(&text),
                Err(ManifestError::Line { line: 2 }),
                "{line:?}"
            );
        }
        let twice = format!("{good}\n{good}\n");
        assert_eq!(parse(&twice), Err(ManifestError::Twice { line: 2, hop: 0 }));
        assert_eq!(
            parse(&"\n".repeat(MAX_BYTES + 1)),
            Err(ManifestError::TooLong)
        );
    }
}
