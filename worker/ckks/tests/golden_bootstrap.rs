//! The bytes of a bootstrap, pinned. Keys and input are pseudorandom, so no secret is needed: the message is
//! garbage, the arithmetic is the real one.

#![allow(clippy::unwrap_used)]

use cipherhop_ckks::*;
use std::sync::Arc;

/// Digests of the two results; they change only when results are meant to change.
const GOLDEN: &str = "c78e977a56ffb8b921ce0af9255975917c1d982d50322a521d251bc816b7cef9\
                      afe83e7ac041ed03ce90fc6d736e4a34d8b4d7246d48c8da60966a1dc9853cfc";

fn digest(kernel: Option<Arc<dyn Kernel>>, threads: usize) -> String {
    let params = Params::by_name("n10-INSECURE").unwrap();
    let ctx = match kernel {
        Some(k) => Context::with_kernel(params, k).unwrap(),
        None => Context::new(params).unwrap(),
    };
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build()
        .unwrap();
    pool.install(|| {
        let boot = Bootstrapper::new(ctx.clone()).unwrap();
        let mut keys = EvalKeys::new();
        for spec in boot.key_specs() {
            keys.insert(EvalKey::pseudorandom(&ctx, spec, &[7; 32]).unwrap());
        }
        let ev = Evaluator::new(ctx.clone(), Arc::new(keys));
        let ct = Ciphertext::pseudorandom(&ctx, 5, ScaleId::Message, &[8; 32]).unwrap();
        let mask: Vec<f64> = (0..8).map(|p| f64::from(p % 3 != 0)).collect();
        let (re, im, _) = boot.complex(&ev, &ct, Some(&mask)).unwrap();
        hex::encode([re.digest(&ctx), im.digest(&ctx)].concat())
    })
}

#[test]
fn a_bootstrap_gives_the_committed_bytes_on_every_kernel_and_thread_count() {
    let best = digest(None, 2);
    assert_eq!(best, digest(Some(Arc::new(ScalarKernel)), 1));
    assert_eq!(best, GOLDEN);
}
