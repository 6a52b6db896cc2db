use super::*;
use crate::uniform::expand_uniform;
use std::sync::Arc;

fn context() -> Arc<Context> {
    Context::new(Params::by_name("n10-INSECURE").unwrap()).unwrap()
}

fn random_poly(ctx: &Context, limbs: usize, salt: u8) -> Poly {
    let data = (0..limbs)
        .flat_map(|i| {
            let q = ctx.modulus(i).value();
            expand_uniform(&[salt; 32], KeyId::Conj, 0, i, q, ctx.n())
        })
        .collect();
    Poly::from_data(ctx, limbs, Domain::Ntt, data).unwrap()
}

fn random_ciphertext(ctx: &Context, level: usize) -> Ciphertext {
    Ciphertext::from_parts(
        ctx,
        random_poly(ctx, level + 1, 1),
        random_poly(ctx, level + 1, 2),
        ScaleId::Message,
    )
    .unwrap()
}

fn key(ctx: &Context, spec: KeySpec) -> EvalKey {
    let b = (0..spec.digits(ctx))
        .map(|d| EvalKey::uniform_half(ctx, spec, &[9; 32], d))
        .collect();
    EvalKey::from_parts(ctx, spec, [7; 32], b).unwrap()
}

#[test]
fn a_ciphertext_survives_the_wire() {
    let ctx = context();
    for level in [0, 3, 18] {
        let ct = random_ciphertext(&ctx, level);
        let bytes = ct.to_bytes(&ctx);
        assert_eq!(bytes.len(), ciphertext_size(ctx.params(), level));
        let back = Ciphertext::from_bytes(&ctx, &bytes).unwrap();
        assert_eq!(back, ct);
        let info = inspect(ctx.params(), &bytes).unwrap();
        assert_eq!((info.level, info.scale), (level, ScaleId::Message));
        assert_eq!(info.digest, ct.digest(&ctx));
    }
}

/// Parses with both readers, which must agree.
fn refusal(ctx: &Context, bytes: &[u8]) -> CkksError {
    let e = Ciphertext::from_bytes(ctx, bytes).unwrap_err();
    assert_eq!(inspect(ctx.params(), bytes).unwrap_err(), e);
    e
}

#[test]
fn each_defect_of_a_ciphertext_has_its_own_refusal() {
    let ctx = context();
    let good = random_ciphertext(&ctx, 2).to_bytes(&ctx);
    let with = |at: usize, byte: u8| {
        let mut b = good.clone();
        b[at] = byte;
        refusal(&ctx, &b)
    };
    for cut in [0, 3, 5, 43, 44, good.len() - 1] {
        assert!(matches!(
            refusal(&ctx, &good[..cut]),
            CkksError::Truncated { .. }
        ));
    }
    let mut long = good.clone();
    long.push(0);
    assert!(matches!(refusal(&ctx, &long), CkksError::Oversize { .. }));
    assert_eq!(with(0, b'X'), CkksError::BadMagic("ciphertext"));
    assert_eq!(with(4, 1), CkksError::UnsupportedVersion(1));
    assert_eq!(with(6, 0), CkksError::BadHeader("domain"));
    assert_eq!(with(7, 3), CkksError::BadHeader("components"));
    assert_eq!(with(8, 19), CkksError::BadHeader("level"));
    assert_eq!(with(8, 255), CkksError::BadHeader("level"));
    assert_eq!(with(9, 1), CkksError::BadHeader("level"));
    assert_eq!(with(9, 2), CkksError::BadHeader("scale"));
    assert_eq!(with(11, 1), CkksError::BadHeader("reserved"));
    assert_eq!(with(12, good[12] ^ 1), CkksError::ForeignParams);
    // a higher level announces more bytes than there are
    assert!(matches!(with(8, 5), CkksError::Truncated { .. }));
    assert!(matches!(with(8, 1), CkksError::Oversize { .. }));

    // q itself is refused, q - 1 is not; limb 1 of component 1, position 5
    let (n, q) = (ctx.n(), ctx.modulus(1).value());
    let component: usize = (0..3).map(|i| packed_size(n, ctx.modulus(i).value())).sum();
    let at = CT_HEADER + component + packed_size(n, ctx.modulus(0).value());
    let mut edge = good.clone();
    let bits = 64 - q.leading_zeros() as usize;
    let mut put = |value: u64| {
        for b in 0..bits {
            let bit = 5 * bits + b;
            let byte = &mut edge[at + bit / 8];
            *byte = *byte & !(1 << (bit % 8)) | (((value >> b & 1) as u8) << (bit % 8));
        }
        edge.clone()
    };
    let back = Ciphertext::from_bytes(&ctx, &put(q - 1)).unwrap();
    assert_eq!(back.c1.limb(1)[5], q - 1);
    assert_eq!(
        refusal(&ctx, &put(q)),
        CkksError::ResidueOutOfRange { limb: 1, index: 5 }
    );
}

#[test]
fn a_ciphertext_of_another_set_is_foreign() {
    let ctx = context();
    let bytes = random_ciphertext(&ctx, 0).to_bytes(&ctx);
    let other = Params::by_name("n11-INSECURE").unwrap();
    assert_eq!(inspect(&other, &bytes), Err(CkksError::ForeignParams));
}

#[test]
fn keys_survive_the_wire() {
    let ctx = context();
    for spec in [
        KeySpec {
            id: KeyId::Relin,
            limbs: 29,
        },
        KeySpec {
            id: KeyId::Rot(5),
            limbs: 9,
        },
        KeySpec {
            id: KeyId::ToSparse,
            limbs: 1,
        },
    ] {
        let k = key(&ctx, spec);
        let bytes = k.to_bytes(&ctx);
        assert_eq!(bytes.len(), key_size(ctx.params(), spec));
        assert_eq!(EvalKey::from_bytes(&ctx, &bytes).unwrap(), k);
        let info = inspect_key(ctx.params(), &bytes).unwrap();
        assert_eq!((info.spec, info.digest), (spec, k.digest(&ctx)));
        let peeked = peek_key(ctx.params(), &bytes[..80]).unwrap();
        assert_eq!(peeked, (spec, bytes.len() as u64));
    }
}

#[test]
fn each_defect_of_a_key_has_its_own_refusal() {
    let ctx = context();
    let spec = KeySpec {
        id: KeyId::Rot(5),
        limbs: 9,
    };
    let good = key(&ctx, spec).to_bytes(&ctx);
    let refusal = |bytes: &[u8]| {
        let e = EvalKey::from_bytes(&ctx, bytes).unwrap_err();
        assert_eq!(inspect_key(ctx.params(), bytes).unwrap_err(), e);
        e
    };
    let with = |at: usize, byte: u8| {
        let mut b = good.clone();
        b[at] = byte;
        refusal(&b)
    };
    for cut in [0, 3, 79, good.len() - 1] {
        assert!(matches!(refusal(&good[..cut]), CkksError::Truncated { .. }));
    }
    let mut long = good.clone();
    long.push(0);
    assert!(matches!(refusal(&long), CkksError::Oversize { .. }));
    assert_eq!(with(0, 0), CkksError::BadMagic("evaluation key"));
    assert_eq!(with(5, 1), CkksError::UnsupportedVersion(258));
    assert_eq!(with(6, 9), CkksError::BadHeader("key id"));
    assert_eq!(with(6, 0), CkksError::BadHeader("key id"));
    assert_eq!(with(6, 3), CkksError::BadHeader("key id"));
    assert_eq!(with(7, 1), CkksError::BadHeader("digits"));
    assert_eq!(with(8, 0), CkksError::BadHeader("key id"));
    assert_eq!(with(9, 2), CkksError::BadHeader("key id"));
    assert_eq!(with(12, 0), CkksError::BadHeader("limbs"));
    assert_eq!(with(12, 30), CkksError::BadHeader("limbs"));
    assert_eq!(with(13, 1), CkksError::BadHeader("special"));
    assert_eq!(with(14, 1), CkksError::BadHeader("reserved"));
    assert_eq!(with(16, good[16] ^ 1), CkksError::ForeignParams);
    let mut edge = good.clone();
    edge[KEY_HEADER..KEY_HEADER + 7].fill(0xff);
    assert_eq!(
        refusal(&edge),
        CkksError::ResidueOutOfRange { limb: 0, index: 0 }
    );
}

#[test]
fn a_key_to_the_sparse_secret_exists_only_at_one_limb() {
    let ctx = context();
    let one = KeySpec {
        id: KeyId::ToSparse,
        limbs: 1,
    };
    let two = KeySpec { limbs: 2, ..one };
    let b = vec![vec![0; 10 * ctx.n()]];
    assert_eq!(
        EvalKey::from_parts(&ctx, two, [0; 32], b),
        Err(CkksError::SparseKeyTooLarge)
    );
    let mut bytes = key(&ctx, one).to_bytes(&ctx);
    bytes[12] = 29;
    assert_eq!(
        EvalKey::from_bytes(&ctx, &bytes),
        Err(CkksError::SparseKeyTooLarge)
    );
}

#[test]
fn uniform_halves_are_separated_by_seed_key_digit_and_modulus() {
    let q = Params::by_name("n10-INSECURE").unwrap().q;
    let base = expand_uniform(&[1; 32], KeyId::Rot(1), 0, 0, q[0], 256);
    assert_eq!(
        base,
        expand_uniform(&[1; 32], KeyId::Rot(1), 0, 0, q[0], 256)
    );
    let others = [
        expand_uniform(&[2; 32], KeyId::Rot(1), 0, 0, q[0], 256),
        expand_uniform(&[1; 32], KeyId::Rot(2), 0, 0, q[0], 256),
        expand_uniform(&[1; 32], KeyId::Conj, 0, 0, q[0], 256),
        expand_uniform(&[1; 32], KeyId::Relin, 0, 0, q[0], 256),
        expand_uniform(&[1; 32], KeyId::Rot(1), 1, 0, q[0], 256),
        expand_uniform(&[1; 32], KeyId::Rot(1), 0, 1, q[0], 256),
        expand_uniform(&[1; 32], KeyId::Rot(1), 0, 0, q[20], 256),
    ];
    for (i, a) in others.iter().enumerate() {
        assert_ne!(*a, base, "{i}");
        for b in &others[..i] {
            assert_ne!(a, b);
        }
    }
    // a shorter request is a prefix, and the residues look uniform
    assert_eq!(
        expand_uniform(&[1; 32], KeyId::Rot(1), 0, 0, q[0], 100)[..],
        base[..100]
    );
    assert!(base.iter().all(|&x| x < q[0]));
    let mean = base.iter().map(|&x| x as f64 / q[0] as f64).sum::<f64>() / 256.0;
    assert!((mean - 0.5).abs() < 0.1, "{mean}");
}
