//! What a volunteer chose for this machine: defaults, then the file in the data folder, then the command line. None of
//! it depends on a coordinator, and none of it is secret.

use std::path::{Path, PathBuf};

use cipherhop_ckks::Isa;
use clap::Args;
use serde::{Deserialize, Serialize};

use crate::error::WorkerError;
use crate::hours::Hours;
use crate::machine;
use crate::units::{self, parse_bytes};

/// Limit of the cache unless chosen, bytes.
const CACHE: u64 = 40 << 30;

/// The file that `config init` writes.
pub const TEMPLATE: &str = r#"# Preferences of this worker. Every line may be left out; options of the command line count more.
# `cipherhop-worker config check` says which values are in force.

# Threads of a computation; results do not depend on it.
#threads = 2
# Most memory a computation may use; without it what is available. With less than all keys need it is slower.
#memory = "8GiB"
# Most disk for programs, keys and weights that were fetched.
#cache = "40GiB"
# When to work, local time; over midnight and several with commas are fine. Outside no hop is begun, and a begun one
# rests after its running step.
#hours = "22:00-07:00"
# How far the computation steps back behind other programs, 0 to 19.
#nice = 10
# Instruction set: scalar, avx2, avx512ifma or neon; without it the fastest there is. Results do not depend on it.
#isa = "avx2"
# Work on chains whose parameter set protects nothing (tests).
#allow_insecure = false
"#;

/// The same choices as options of a command; each overrides the file.
#[derive(Clone, Debug, Default, Args)]
pub struct Choices {
    /// Threads of a computation; results do not depend on it.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Instruction set to compute with: scalar, avx2, avx512ifma or neon; the fastest there is unless given. Results do
    /// not depend on it.
    #[arg(long, value_name = "NAME")]
    pub isa: Option<Isa>,
    /// Most memory a computation may use, for example 8GiB; below what it needs for all keys it is slower. By default
    /// what is available.
    #[arg(long, value_parser = parse_bytes, value_name = "SIZE")]
    pub memory: Option<u64>,
    /// Limit of the blob cache, for example 40GiB, which is the default.
    #[arg(long, value_parser = parse_bytes, value_name = "SIZE")]
    pub cache: Option<u64>,
    /// When to work, local time, for example 22:00-07:00 (several with commas), or always. Outside no hop is begun, and a
    /// begun one rests after its running step.
    #[arg(long, value_name = "HOURS")]
    pub hours: Option<Hours>,
    /// How far the computation steps back behind other programs, 0 to 19.
    #[arg(long, value_name = "LEVEL", value_parser = clap::value_parser!(u8).range(0..=19))]
    pub nice: Option<u8>,
    /// Work on chains whose parameter set protects nothing (tests).
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    pub allow_insecure: Option<bool>,
}

/// The file as written.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    threads: Option<u16>,
    isa: Option<String>,
    memory: Option<String>,
    cache: Option<String>,
    hours: Option<Hours>,
    nice: Option<u8>,
    allow_insecure: Option<bool>,
}

/// Where a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// Nobody chose.
    Default,
    /// The file in the data folder.
    File,
    /// The command line.
    Flag,
}

impl Origin {
    /// One word.
    pub fn name(self) -> &'static str {
        match self {
            Origin::Default => "default",
            Origin::File => "file",
            Origin::Flag => "flag",
        }
    }
}

/// A value in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Setting<T> {
    /// It.
    pub value: T,
    /// Who chose it.
    pub from: Origin,
}

fn setting<T>(flag: Option<T>, file: Option<T>, default: impl FnOnce() -> T) -> Setting<T> {
    let (value, from) = match (flag, file) {
        (Some(value), _) => (value, Origin::Flag),
        (None, Some(value)) => (value, Origin::File),
        (None, None) => (default(), Origin::Default),
    };
    Setting { value, from }
}

/// All values in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Preferences {
    /// Threads of a computation.
    pub threads: Setting<usize>,
    /// Instruction set; `None` for the fastest there is.
    #[serde(serialize_with = "isa_name")]
    pub isa: Setting<Option<Isa>>,
    /// Most memory of a computation, bytes; `None` for what is available.
    pub memory: Setting<Option<u64>>,
    /// Limit of the cache, bytes.
    pub cache: Setting<u64>,
    /// When to work.
    pub hours: Setting<Hours>,
    /// Added to the niceness of the computing process.
    pub nice: Setting<u8>,
    /// Chains that protect nothing are taken.
    pub allow_insecure: Setting<bool>,
}

fn isa_name<S: serde::Serializer>(isa: &Setting<Option<Isa>>, to: S) -> Result<S::Ok, S::Error> {
    let value = isa.value.map(Isa::name);
    Setting {
        value,
        from: isa.from,
    }
    .serialize(to)
}

/// Where the file lies in a data folder.
pub fn path(root: &Path) -> PathBuf {
    root.join("config.toml")
}

impl Preferences {
    /// Reads the file, if there is one, and puts the options over it.
    pub fn load(root: &Path, flags: &Choices) -> Result<Preferences, WorkerError> {
        let path = path(root);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(WorkerError::file(&path)(error)),
        };
        Preferences::of(&text, flags).map_err(|problem| WorkerError::Preferences { path, problem })
    }

    fn of(text: &str, flags: &Choices) -> Result<Preferences, String> {
        let file: File = toml::from_str(text).map_err(|e| e.to_string().trim_end().to_owned())?;
        let size = |key: &str, text: &Option<String>| match text {
            Some(text) => parse_bytes(text)
                .map(Some)
                .map_err(|e| format!("{key}: {e}")),
            None => Ok(None),
        };
        if file.threads.is_some_and(|n| !(1..=1024).contains(&n)) {
            return Err("threads: a number from 1 to 1024".into());
        }
        if file.nice.is_some_and(|n| n > 19) {
            return Err("nice: a number from 0 to 19".into());
        }
        let isa = match &file.isa {
            Some(name) => Some(name.parse::<Isa>().map_err(|e| format!("isa: {e}"))?),
            None => None,
        };
        Ok(Preferences {
            threads: setting(
                flags.threads.map(usize::from),
                file.threads.map(usize::from),
                machine::threads,
            ),
            isa: setting(flags.isa.map(Some), isa.map(Some), || None),
            memory: setting(
                flags.memory.map(Some),
                size("memory", &file.memory)?.map(Some),
                || None,
            ),
            cache: setting(flags.cache, size("cache", &file.cache)?, || CACHE),
            hours: setting(flags.hours.clone(), file.hours, Hours::default),
            nice: setting(flags.nice, file.nice, || 0),
            allow_insecure: setting(flags.allow_insecure, file.allow_insecure, || false),
        })
    }

    /// Name, value and origin of each, for people.
    pub fn rows(&self) -> Vec<[String; 3]> {
        fn row<T>(name: &str, setting: &Setting<T>, text: String) -> [String; 3] {
            [name.into(), text, setting.from.name().into()]
        }
        let memory = match self.memory.value {
            Some(bytes) => units::bytes(bytes),
            None => format!(
                "what is available ({} now)",
                units::bytes(machine::memory_for_work(None))
            ),
        };
        let isa = match self.isa.value {
            Some(isa) => isa.name().to_owned(),
            None => format!("the fastest ({})", Isa::best()),
        };
        vec![
            row("threads", &self.threads, self.threads.value.to_string()),
            row("isa", &self.isa, isa),
            row("memory", &self.memory, memory),
            row("cache", &self.cache, units::bytes(self.cache.value)),
            row("hours", &self.hours, self.hours.value.to_string()),
            row("nice", &self.nice, self.nice.value.to_string()),
            row(
                "allow_insecure",
                &self.allow_insecure,
                self.allow_insecure.value.to_string(),
            ),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_counts_more_than_the_file_and_the_file_more_than_the_default() {
        let flags = Choices {
            threads: Some(3),
            ..Choices::default()
        };
        let text =
            "threads = 2\nmemory = \"1GiB\"\nhours = \"22:00-07:00\"\nallow_insecure = true\n";
        let found = Preferences::of(text, &flags).unwrap();
        assert_eq!(
            found.threads,
            Setting {
                value: 3,
                from: Origin::Flag
            }
        );
        assert_eq!(
            found.memory,
            Setting {
                value: Some(1 << 30),
                from: Origin::File
            }
        );
        assert_eq!(
            found.cache,
            Setting {
                value: CACHE,
                from: Origin::Default
            }
        );
        assert_eq!(found.hours.value.to_string(), "22:00-07:00");
        let flags = Choices {
            allow_insecure: Some(false),
            ..Choices::default()
        };
        let found = Preferences::of(text, &flags).unwrap();
        assert_eq!(
            found.allow_insecure,
            Setting {
                value: false,
                from: Origin::Flag
            }
        );
    }

    #[test]
    fn unknown_keys_and_values_that_make_no_sense_are_refused_by_name() {
        for (bad, named) in [
            ("thread = 2", "thread"),
            ("threads = 0", "threads"),
            ("nice = 20", "nice"),
            ("nice = -1", "nice"),
            ("cache = \"much\"", "cache"),
            ("memory = 5", "memory"),
            ("hours = \"late\"", "22:00-07:00"),
            ("isa = \"mmx\"", "isa"),
            ("threads =", "threads"),
        ] {
            let error = Preferences::of(bad, &Choices::default()).unwrap_err();
            assert!(error.contains(named), "{bad}: {error}");
        }
    }

    #[test]
    fn the_template_is_a_file_of_defaults_and_each_of_its_lines_counts() {
        let defaults = Preferences::of("", &Choices::default()).unwrap();
        assert_eq!(
            Preferences::of(TEMPLATE, &Choices::default()).unwrap(),
            defaults
        );
        let switched: String = TEMPLATE
            .lines()
            .map(|line| match line.strip_prefix('#') {
                Some(key) if !key.starts_with(' ') => format!("{key}\n"),
                _ => format!("{line}\n"),
            })
            .collect();
        let all = Preferences::of(&switched, &Choices::default()).unwrap();
        assert!(
            all.rows().iter().all(|[_, _, from]| from == "file"),
            "{all:?}"
        );
    }
}
