use super::*;
use crate::cipher::Ciphertext;
use crate::complex::Complex;
use crate::eval::Evaluator;
use crate::keys::{EvalKey, EvalKeys, KeyId, KeySpec};

fn context(name: &str) -> Arc<Context> {
    Context::new(Params::by_name(name).unwrap()).unwrap()
}

#[test]
fn scales_stay_close_to_their_primes_and_obey_the_recurrence() {
    let ctx = context("n10-INSECURE");
    for (row, size) in [(ScaleId::Message, 42), (ScaleId::EvalMod, 50)] {
        let (low, high) = ctx.level_range(row);
        for level in low..=high {
            let d = ctx.scale_of(row, level).unwrap();
            assert!((d / (1u64 << size) as f64 - 1.0).abs() < 1e-4);
            if level > low {
                let below = ctx.scale_of(row, level - 1).unwrap();
                let q = ctx.modulus(level).value() as f64;
                assert!((d * d / q / below - 1.0).abs() < 1e-15);
            }
        }
    }
    assert_eq!(ctx.scale(0), (1u64 << 42) as f64);
    let top = ctx.params().boot_out_level();
    let meet = ctx.scale_of(ScaleId::EvalMod, top).unwrap();
    assert_eq!(meet, 256.0 * ctx.scale(top));
    assert!(ctx.scale_of(ScaleId::Message, 19).is_err());
    assert!(ctx.scale_of(ScaleId::EvalMod, 17).is_err());
    assert!(ctx.scale_of(ScaleId::EvalMod, 29).is_err());
}

#[test]
fn galois_elements_compose() {
    let ctx = context("n10-INSECURE");
    let two_n = 2 * ctx.n();
    let (a, b) = (ctx.galois_rotation(3), ctx.galois_rotation(500));
    assert_eq!(a * b % two_n, ctx.galois_rotation(503));
    assert_eq!(ctx.galois_rotation(ctx.slots()), 1);
    let identity: Vec<u32> = (0..ctx.n() as u32).collect();
    assert_eq!(*ctx.automorphism(1), identity);
}

#[test]
fn tables_and_arithmetic_give_the_golden_digests() {
    let ctx = context("n10-INSECURE");
    assert_eq!(
        hex::encode(ctx.tables_digest()),
        "90bbde83c9527ab5db5ad0419bbdc3f01213850ad3c05dc2a2a9c3476be76319",
        "tables"
    );
    let mut keys = EvalKeys::new();
    for id in [KeyId::Relin, KeyId::Conj, KeyId::Rot(3)] {
        let spec = KeySpec { id, limbs: 29 };
        keys.insert(EvalKey::pseudorandom(&ctx, spec, &[5; 32]).unwrap());
    }
    let ev = Evaluator::new(ctx.clone(), Arc::new(keys));
    let a = Ciphertext::pseudorandom(&ctx, 18, ScaleId::Message, &[6; 32]).unwrap();
    let v: Vec<Complex> = (0..64)
        .map(|i| Complex::new((i * 37 % 64) as f64 / 64.0 - 0.5, i as f64 / 3.0))
        .collect();
    let b = ev.mul(&a, &ev.rotate(&a, 3).unwrap()).unwrap();
    let p = ctx.encode_mul(&v, 17).unwrap();
    let c = ev.conjugate(&ev.mul_plain(&b, &p).unwrap()).unwrap();
    let c = ev.drop_to(&c, 7).unwrap();
    assert_eq!(
        hex::encode(c.digest(&ctx)),
        "54a684c7202df459e14688735d4cf2525c38f9ddd235068c5f6a8609d4dc226e",
        "arithmetic"
    );
}
