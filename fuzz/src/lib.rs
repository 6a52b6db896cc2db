//! Every parser of foreign bytes as one function of bytes, for two users: the fuzzers in `libfuzzer/` and the replay of
//! the committed corpus among the tests. A target panics where a parser breaks a promise.

use std::sync::Once;

use peak_alloc::PeakAlloc;

mod answers;
mod files;
mod hop;
mod lattice;
mod models;
mod rpc;
mod scratch;
mod text;
mod volunteer;

#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

/// A parser, or several of one kind.
pub struct Target {
    /// Name of its folder in the corpus and of its fuzzer.
    pub name: &'static str,
    /// Builds what the parser needs beside the bytes, so that its memory is not counted.
    prepare: fn(),
    /// Parses; returns how many bytes the parser was given, which may be more than the input where a target completes it.
    run: fn(&[u8]) -> usize,
    /// Bytes in memory that one byte of input declares: 1 for packed binary forms, more where the form is shorter than
    /// what it stands for (an eight-bit number in a list of 64-bit ones, `"",` in a list of texts).
    widens: usize,
    /// Fixed buffers, bytes.
    buffers: usize,
}

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Bytes of memory for one byte of JSON or TOML: a list of empty texts takes three bytes each in a file, 24 in memory.
const TEXT: usize = 8;

/// All of them.
pub const TARGETS: &[Target] = &[
    target(
        "ciphertext",
        lattice::prepare,
        lattice::ciphertext,
        1,
        64 * KIB,
    ),
    // The uniform half of a key is not in the file: it is made from a seed.
    target(
        "eval_key",
        lattice::prepare,
        lattice::eval_key,
        2,
        256 * KIB,
    ),
    target("key_manifest", nothing, hop::key_manifest, TEXT, 64 * KIB),
    target("program", nothing, hop::program, TEXT, 64 * MIB),
    target("calibration", nothing, hop::calibration, TEXT, 256 * KIB),
    target("weight_pack", hop::prepare, hop::weight_pack, 1, 64 * KIB),
    target("gguf", scratch::prepare, models::gguf, TEXT, 4 * MIB),
    target(
        "safetensors",
        scratch::prepare,
        models::safetensors,
        TEXT,
        4 * MIB,
    ),
    target(
        "tokenizer",
        scratch::prepare,
        models::tokenizer,
        TEXT,
        4 * MIB,
    ),
    target("trace", nothing, hop::trace, TEXT, 256 * KIB),
    target("rpc", rpc::prepare, rpc::calls, TEXT, 8 * MIB),
    target("answers", nothing, answers::answers, TEXT, 256 * KIB),
    target("text", scratch::prepare, text::text, TEXT, 256 * KIB),
    target(
        "certificates",
        scratch::prepare,
        files::certificates,
        TEXT,
        4 * MIB,
    ),
    target(
        "local_files",
        scratch::prepare,
        files::local_files,
        TEXT,
        4 * MIB,
    ),
    target("pack", scratch::prepare, volunteer::pack, TEXT, 4 * MIB),
    target(
        "preferences",
        scratch::prepare,
        volunteer::preferences,
        TEXT,
        4 * MIB,
    ),
];

const fn target(
    name: &'static str,
    prepare: fn(),
    run: fn(&[u8]) -> usize,
    widens: usize,
    buffers: usize,
) -> Target {
    Target {
        name,
        prepare,
        run,
        widens,
        buffers,
    }
}

fn nothing() {}

/// The target of that name.
///
/// # Panics
/// When there is none.
pub fn by_name(name: &str) -> &'static Target {
    let found = TARGETS.iter().find(|target| target.name == name);
    found.unwrap_or_else(|| panic!("no target {name}"))
}

impl Target {
    /// Parses once.
    ///
    /// # Panics
    /// When the parser does, or when it takes more than twice the memory that the input declares.
    pub fn check(&self, bytes: &[u8]) {
        (self.prepare)();
        let before = HEAP.current_usage();
        HEAP.reset_peak_usage();
        let given = (self.run)(bytes);
        let taken = HEAP.peak_usage().saturating_sub(before);
        // What the target itself holds is one more time the bytes.
        let limit = 2 * self.widens * given + given + self.buffers;
        assert!(
            taken <= limit,
            "{}: {taken} bytes of memory for {given}; at most {limit}",
            self.name
        );
    }
}

/// For a fuzzer, which calls this again and again for one target.
///
/// # Panics
/// As [`Target::check`].
pub fn fuzz(name: &str, bytes: &[u8]) {
    // What is made once is made before it counts.
    static FIRST: Once = Once::new();
    let target = by_name(name);
    FIRST.call_once(|| {
        (target.prepare)();
        (target.run)(bytes);
    });
    target.check(bytes);
}
