//! Windows of tokens from a public corpus, and the name under which a calibration made from it may be kept.

use std::path::PathBuf;

use sha2::{Digest, Sha256};

use crate::{
    calib::CALIBRATION_FORMAT,
    calibrate::{CalibrateError, CalibrationOptions},
    model::{Model, ModelError},
};

/// Corpus line with its escapes (`\n`, `\t`, `\\`) resolved.
pub fn unescape(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match (c, c == '\\') {
            (_, false) => out.push(c),
            _ => match chars.next() {
                Some('n') => out.push('\n'),
                Some('t') => out.push('\t'),
                Some(other) => out.push(other),
                None => out.push('\\'),
            },
        }
    }
    out
}

/// Windows of `tokens` tokens: the starts of all lines first, then later parts of long ones.
pub fn corpus_windows(
    model: &Model,
    corpus: &str,
    tokens: usize,
    most: usize,
) -> Result<Vec<Vec<u32>>, CalibrateError> {
    let mut lines = Vec::new();
    for line in corpus.lines().filter(|l| !l.is_empty()) {
        match model.tokenizer.encode_private(&unescape(line)) {
            Ok(ids) if !ids.is_empty() => lines.push(ids),
            Ok(_) | Err(ModelError::SpecialToken(_)) => {}
            Err(e) => return Err(e.into()),
        }
    }
    if lines.len() < 100 {
        return Err(CalibrateError::SmallCorpus(lines.len()));
    }
    let mut windows = Vec::new();
    let mut round = 0;
    loop {
        let before = windows.len();
        for (i, line) in lines.iter().enumerate() {
            let start = round * tokens;
            if start >= line.len() || (round > 0 && start + tokens > line.len()) {
                continue;
            }
            // Short lines go on with the lines after them.
            let rest = lines[i + 1..].iter().chain(&lines[..=i]).flatten();
            let window: Vec<u32> = line[start..]
                .iter()
                .chain(rest)
                .copied()
                .take(tokens)
                .collect();
            if window.len() == tokens {
                windows.push(window);
            }
        }
        if windows.len() == before || windows.len() >= most {
            windows.truncate(most);
            return Ok(windows);
        }
        round += 1;
    }
}

/// Source text of everything a calibration is computed by.
const CODE: [&str; 11] = [
    include_str!("calib.rs"),
    include_str!("calibrate.rs"),
    include_str!("corpus.rs"),
    include_str!("fit.rs"),
    include_str!("fold.rs"),
    include_str!("stats.rs"),
    include_str!("model/dequant.rs"),
    include_str!("model/forward.rs"),
    include_str!("model/math.rs"),
    include_str!("model/tokenizer.rs"),
    include_str!("model/weights.rs"),
];

/// Two calibrations with one key are the same: model, prefix, corpus, options and the code that makes them.
pub fn cache_key(
    model: &Model,
    prefix: &[u32],
    corpus: &str,
    options: &CalibrationOptions,
) -> [u8; 32] {
    let mut hash = Sha256::new();
    let mut part = |text: &str| {
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text);
    };
    part(CALIBRATION_FORMAT);
    part(&model.weights_sha256);
    part(&format!("{:?} {prefix:?} {options:?}", model.config));
    part(corpus);
    CODE.into_iter().for_each(part);
    hash.finalize().into()
}

/// Where the user's cache keeps that calibration; `None` without a cache or home folder.
pub fn kept_path(
    model: &Model,
    prefix: &[u32],
    corpus: &str,
    options: &CalibrationOptions,
) -> Option<PathBuf> {
    let folder = |name: &str| {
        let path = std::env::var_os(name).map(PathBuf::from);
        path.filter(|p| p.is_absolute())
    };
    let cache = folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")))?;
    let key = hex::encode(&cache_key(model, prefix, corpus, options)[..16]);
    let name = format!("t{}-{key}.json", options.max_tokens);
    Some(cache.join("cipherhop").join("calibrations").join(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calib::PUBLIC_CORPUS;

    #[test]
    fn escapes_are_resolved() {
        assert_eq!(unescape(r"a\nb\\n\t\"), "a\nb\\n\t\\");
    }

    #[test]
    fn the_shipped_corpus_has_at_least_200_different_lines() {
        let lines: std::collections::BTreeSet<&str> =
            PUBLIC_CORPUS.lines().filter(|l| !l.is_empty()).collect();
        assert!(lines.len() >= 200, "{}", lines.len());
    }

    #[test]
    fn the_cache_key_changes_with_all_it_depends_on() {
        let model = Model::open("tiny-llama").unwrap();
        let three = CalibrationOptions::new(3);
        let mut careful = three;
        careful.margins.gate = 2.0;
        let keys = [
            cache_key(&model, &[1, 2], "a", &three),
            cache_key(&Model::open("tiny-qwen3").unwrap(), &[1, 2], "a", &three),
            cache_key(&model, &[1, 3], "a", &three),
            cache_key(&model, &[1, 2], "b", &three),
            cache_key(&model, &[1, 2], "a", &CalibrationOptions::new(4)),
            cache_key(&model, &[1, 2], "a", &careful),
        ];
        let different: std::collections::BTreeSet<_> = keys.iter().collect();
        assert_eq!(different.len(), keys.len());
        assert_eq!(keys[0], cache_key(&model, &[1, 2], "a", &three));
    }
}
