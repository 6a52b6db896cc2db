//! What it costs to bring an evaluation key into memory: `cargo run --release --example key_loading -- n16-128`.

use cipherhop_ckks::{
    CkksError, Context, EvalKey, KeyId, KeySpec, Params, SpareBlocks, expand_uniform, pack,
    packed_size, unpack,
};
use sha2::{Digest, Sha256};
use std::io::{Read, Write};
use std::time::Instant;

/// Processor seconds of this process; 0 where the system does not say.
fn processor() -> f64 {
    let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten();
    let of_thread = |dir: std::fs::DirEntry| -> Option<f64> {
        let text = std::fs::read_to_string(dir.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse().ok()
    };
    threads.flatten().filter_map(of_thread).sum::<f64>() / 1e9
}

fn best<T>(what: &str, bytes: usize, mut f: impl FnMut() -> T) {
    let (mut least, mut work) = (f64::MAX, f64::MAX);
    for _ in 0..5 {
        let (start, before) = (Instant::now(), processor());
        std::hint::black_box(f());
        least = least.min(start.elapsed().as_secs_f64());
        work = work.min(processor() - before);
    }
    let rate = bytes as f64 / least / 1e9;
    println!(
        "{what:<40} {:>9.2} ms  {rate:>6.2} GB/s, processor {:>9.2} ms",
        least * 1e3,
        work * 1e3
    );
}

fn main() -> Result<(), CkksError> {
    let name = std::env::args().nth(1);
    let params = Params::by_name(name.as_deref().unwrap_or("n14-INSECURE"))?;
    let ctx = Context::new(params)?;
    let n = ctx.n();
    for q in [ctx.modulus(0).value(), ctx.modulus(1).value()] {
        let bits = 64 - q.leading_zeros();
        let mut v = expand_uniform(&[1; 32], KeyId::Relin, 0, 0, q, n);
        best(&format!("uniform residues, {bits} bits"), n * 8, || {
            expand_uniform(&[1; 32], KeyId::Relin, 0, 0, q, n)
        });
        let mut bytes = Vec::with_capacity(packed_size(n, q));
        best(&format!("pack {bits} bits"), n * 8, || {
            bytes.clear();
            pack(&v, q, &mut bytes);
        });
        best(&format!("unpack {bits} bits"), n * 8, || {
            unpack(&bytes, q, &mut v)
        });
    }
    let spec = KeySpec {
        id: KeyId::Relin,
        limbs: ctx.q_len(),
    };
    let key = EvalKey::pseudorandom(&ctx, spec, &[7; 32])?;
    let bytes = key.to_bytes(&ctx);
    println!("key {} bytes, expanded {}", bytes.len(), key.bytes());
    best("write", bytes.len(), || key.to_bytes(&ctx));
    best("sha-256", bytes.len(), || Sha256::digest(&bytes));
    let mut blake = vec![0u8; 1 << 20];
    best("blake3 output", 1 << 20, || {
        let mut xof = blake3::Hasher::new_keyed(&[1; 32]).finalize_xof();
        xof.fill(&mut blake);
    });
    let path = std::env::temp_dir().join(format!("key_loading.{}", std::process::id()));
    let io = |e: std::io::Error| CkksError::Unreadable(e.to_string());
    std::fs::File::create(&path)
        .and_then(|mut f| f.write_all(&bytes))
        .map_err(io)?;
    let mut spare = SpareBlocks::default();
    let size = bytes.len() as u64;
    for (what, recycled, hashed) in [
        ("read and expand, fresh memory", false, false),
        ("read and expand, memory reused", true, false),
        ("the same with the digest", true, true),
    ] {
        let mut last = None;
        best(what, key.bytes(), || {
            if let (true, Some(Ok(key))) = (recycled, last.take()) {
                EvalKey::recycle(key, &mut spare);
            }
            let mut hash = Sha256::new();
            last = Some(std::fs::File::open(&path).map_err(io).and_then(|mut f| {
                EvalKey::read(&ctx, &mut f, size, hashed.then_some(&mut hash), &mut spare)
            }));
        });
    }
    // What reading an expanded file from the page cache would cost at least.
    let expanded = vec![1u8; key.bytes()];
    std::fs::write(&path, &expanded).map_err(io)?;
    let mut buffer = expanded;
    best(
        "read of an expanded file, memory reused",
        key.bytes(),
        || std::fs::File::open(&path).and_then(|mut f| f.read_exact(&mut buffer)),
    );
    best("copy of the expanded key", key.bytes(), || key.clone());
    std::fs::remove_file(&path).map_err(io)
}
