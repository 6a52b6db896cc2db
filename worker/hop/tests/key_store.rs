//! Keys streamed under a budget: the same keys, the same results, and never more memory than allowed.
#![allow(clippy::unwrap_used, missing_docs)]

use std::fs;
use std::path::Path;
use std::sync::Arc;

use cipherhop_ckks::{
    Bootstrapper, Ciphertext, CkksError, Context, EvalKey, EvalKeys, Evaluator, KeyId, KeySource,
    KeySpec, Params, ScaleId, expanded_key_size, key_size,
};
use cipherhop_hop::keys::{DirKeys, KEYS_FORMAT, KeyEntry, KeyManifest};
use sha2::{Digest, Sha256};

fn context() -> Arc<Context> {
    Context::new(Params::by_name("n10-INSECURE").unwrap()).unwrap()
}

fn key(ctx: &Context, spec: KeySpec) -> EvalKey {
    EvalKey::pseudorandom(ctx, spec, &[7; 32]).unwrap()
}

fn write(ctx: &Arc<Context>, dir: &Path, specs: &[KeySpec]) -> DirKeys {
    let mut keys: Vec<KeyEntry> = specs
        .iter()
        .map(|&spec| {
            let bytes = key(ctx, spec).to_bytes(ctx);
            let digest = hex::encode(Sha256::digest(&bytes));
            fs::write(dir.join(&digest), &bytes).unwrap();
            KeyEntry {
                id: spec.id.to_string(),
                limbs: spec.limbs,
                digest,
                size: bytes.len() as u64,
            }
        })
        .collect();
    keys.sort_by(|a, b| a.id.cmp(&b.id));
    let manifest = KeyManifest {
        format: KEYS_FORMAT.into(),
        params_digest: hex::encode(ctx.params_digest()),
        keys,
    };
    DirKeys::open(ctx.clone(), dir.to_path_buf(), manifest).unwrap()
}

#[test]
fn the_budget_holds_and_the_order_of_use_decides_what_goes() {
    let ctx = context();
    let dir = tempfile::tempdir().unwrap();
    let specs: Vec<KeySpec> = (1..=6)
        .map(|r| KeySpec {
            id: KeyId::Rot(r),
            limbs: 4,
        })
        .collect();
    let one = expanded_key_size(ctx.params(), specs[0]) as u64;
    assert_eq!(one, key(&ctx, specs[0]).bytes() as u64);
    let ids: Vec<KeyId> = specs.iter().map(|s| s.id).collect();
    let rounds = 5;
    let all: Vec<KeyId> = (0..rounds).flat_map(|_| ids.clone()).collect();
    let mut loads = Vec::new();
    for told in [true, false] {
        let keys = write(&ctx, dir.path(), &specs).with_budget(3 * one + one / 2);
        for round in 0..rounds {
            if told {
                let (now, later) = all[round * 6..].split_at(6);
                keys.expect(now, later);
            }
            // Within a step the order may be another.
            for i in [1, 0, 2, 5, 3, 4] {
                assert_eq!(*keys.key(ids[i]).unwrap(), key(&ctx, specs[i]));
            }
        }
        let used = keys.usage();
        assert_eq!(used.asked, 30);
        assert_eq!(used.peak_bytes, 3 * one);
        assert_eq!(
            used.bytes_read,
            used.loads * key_size(ctx.params(), specs[0]) as u64
        );
        loads.push(used.loads);
    }
    // Going around in circles, the least recently used key is the one that is needed next.
    assert_eq!(loads[1], 30);
    assert!(loads[0] <= 22, "{loads:?}");

    let keys = write(&ctx, dir.path(), &specs).with_budget(6 * one);
    for id in all {
        keys.key(id).unwrap();
    }
    assert_eq!(keys.usage().loads, 6);
}

#[test]
fn keys_in_use_stay_even_beyond_the_budget() {
    let ctx = context();
    let dir = tempfile::tempdir().unwrap();
    let spec = |r| KeySpec {
        id: KeyId::Rot(r),
        limbs: 9,
    };
    let specs: Vec<KeySpec> = (1..=4).map(spec).collect();
    let keys = write(&ctx, dir.path(), &specs).with_budget(0);
    let held: Vec<_> = (1..=3).map(|r| keys.key(KeyId::Rot(r)).unwrap()).collect();
    let again = keys.key(KeyId::Rot(1)).unwrap();
    assert!(Arc::ptr_eq(&again, &held[0]) && keys.usage().loads == 3);
    drop((held, again));
    keys.key(KeyId::Rot(4)).unwrap();
    for r in 1..=4 {
        assert_eq!(*keys.key(KeyId::Rot(r)).unwrap(), key(&ctx, spec(r)));
    }
    assert_eq!(keys.usage().loads, 8);
}

#[test]
fn changed_shortened_and_longer_files_are_refused_and_the_store_goes_on() {
    let ctx = context();
    let dir = tempfile::tempdir().unwrap();
    let specs = [1, 2].map(|r| KeySpec {
        id: KeyId::Rot(r),
        limbs: 2,
    });
    let keys = write(&ctx, dir.path(), &specs);
    let one = expanded_key_size(ctx.params(), specs[0]) as u64;
    let keys = keys.with_budget(one);
    let good = key(&ctx, specs[0]).to_bytes(&ctx);
    let path = dir.path().join(hex::encode(Sha256::digest(&good)));
    let refused = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        keys.key(KeyId::Rot(1)).unwrap_err()
    };
    for at in (0..good.len())
        .step_by(good.len() / 97)
        .chain([good.len() - 1])
    {
        let mut bytes = good.clone();
        bytes[at] ^= 1 << (at % 8);
        refused(&bytes);
    }
    for cut in [0, 1, 79, 80, good.len() / 2, good.len() - 1] {
        refused(&good[..cut]);
    }
    let longer = [&good[..], &[0]].concat();
    assert!(matches!(refused(&longer), CkksError::Oversize { .. }));
    // Another key in its place, whole in itself.
    refused(&key(&ctx, specs[1]).to_bytes(&ctx));
    fs::remove_file(&path).unwrap();
    assert!(matches!(
        keys.key(KeyId::Rot(1)),
        Err(CkksError::Unreadable(_))
    ));
    fs::write(&path, &good).unwrap();
    assert_eq!(*keys.key(KeyId::Rot(1)).unwrap(), key(&ctx, specs[0]));
    keys.key(KeyId::Rot(2)).unwrap();
    assert_eq!(keys.usage().peak_bytes, one);
}

#[test]
fn a_bootstrap_from_streamed_keys_gives_the_same_bytes() {
    let ctx = context();
    let dir = tempfile::tempdir().unwrap();
    let boot = Bootstrapper::new(ctx.clone()).unwrap();
    let specs = boot.key_specs();
    let mut memory = EvalKeys::new();
    let mut largest = 0;
    for &spec in &specs {
        memory.insert(key(&ctx, spec));
        largest = largest.max(expanded_key_size(ctx.params(), spec) as u64);
    }
    let total = memory.bytes() as u64;
    let streamed = Arc::new(write(&ctx, dir.path(), &specs).with_budget(total / 4));
    let ct = Ciphertext::pseudorandom(&ctx, 3, ScaleId::Message, &[8; 32]).unwrap();
    let run = |keys: Arc<dyn KeySource>| {
        let ev = Evaluator::new(ctx.clone(), keys);
        boot.complex(&ev, &ct, None)
            .map(|(re, im, _)| (re, im))
            .unwrap()
    };
    let want = run(Arc::new(memory));
    assert_eq!(run(streamed.clone()), want);
    assert_eq!(run(streamed.clone()), want);
    let used = streamed.usage();
    assert!(used.loads > specs.len() as u64, "{used:?}");
    assert!(used.peak_bytes <= total / 4 + largest, "{used:?}");
}
