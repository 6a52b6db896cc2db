use super::*;
use crate::context::Context;
use crate::kernel::Raise;
use crate::keys::KeyId;
use crate::params::Params;
use crate::poly::{Domain, ExtPoly, Poly};
use crate::uniform::expand_uniform;
use num_bigint::BigInt;
use std::sync::Arc;

fn context() -> Arc<Context> {
    Context::new(Params::by_name("n10-INSECURE").unwrap()).unwrap()
}

/// One target of a conversion, back in coefficients.
fn convert(ctx: &Context, conv: &BaseConverter, limbs: &[Vec<u64>], index: usize) -> Vec<u64> {
    let limbs: Vec<&[u64]> = limbs.iter().map(|l| &l[..]).collect();
    let prepared = ctx.prepare(&[(conv, limbs.clone())]).remove(0);
    let mut out = vec![0; ctx.n()];
    let target = Raise {
        table: ctx.table(index),
        weights: conv.target(index),
        out: &mut out,
        finish: None,
    };
    ctx.kernel().raise(&prepared, &mut [target]);
    ctx.ntt_inverse(index, &mut out);
    out
}

fn residues(ctx: &Context, index: usize, salt: u8) -> Vec<u64> {
    let q = ctx.modulus(index).value();
    let mut r = expand_uniform(&[salt; 32], KeyId::Relin, 0, index, q, ctx.n());
    // edges, in all limbs alike: 0, 1, -1, -2 and (D - 1)/2
    r[..5].copy_from_slice(&[0, 1, q - 1, q - 2, q / 2]);
    r
}

/// Residues of the integers in (-D/2, D/2) congruent to the given limbs.
fn centred(ctx: &Context, sources: &[usize], limbs: &[Vec<u64>]) -> Vec<BigInt> {
    let d: BigInt = sources
        .iter()
        .map(|&s| BigInt::from(ctx.modulus(s).value()))
        .product();
    let hats: Vec<BigInt> = sources
        .iter()
        .map(|&s| {
            let q = BigInt::from(ctx.modulus(s).value());
            let hat = &d / &q;
            let inverse = hat.modpow(&(&q - 2), &q);
            hat * inverse
        })
        .collect();
    (0..ctx.n())
        .map(|k| {
            let x: BigInt = hats.iter().zip(limbs).map(|(h, l)| h * l[k]).sum();
            let x = x % &d;
            if &x * 2 > d { x - &d } else { x }
        })
        .collect()
}

fn residue(x: &BigInt, q: u64) -> u64 {
    let q = BigInt::from(q);
    let r = ((x % &q) + &q) % &q;
    u64::try_from(r).unwrap()
}

#[test]
fn conversion_is_the_centred_integer_exactly() {
    let ctx = context();
    let moduli: Vec<Modulus> = (0..ctx.moduli_len()).map(|i| *ctx.modulus(i)).collect();
    for sources in [
        vec![0],
        vec![0, 1],
        (0..8).collect(),
        (8..16).collect(),
        (16..21).collect(),
        (24..29).collect(),
        (29..37).collect(),
        (29..37).chain([7]).collect::<Vec<_>>(),
    ] {
        let conv = BaseConverter::new(&moduli, &sources);
        let limbs: Vec<Vec<u64>> = sources.iter().map(|&s| residues(&ctx, s, 1)).collect();
        let exact = centred(&ctx, &sources, &limbs);
        for index in [0, 3, 9, 20, 28, 30, 36] {
            let m = ctx.modulus(index);
            let out = convert(&ctx, &conv, &limbs, index);
            for (k, (got, x)) in out.iter().zip(&exact).enumerate() {
                assert_eq!(
                    *got,
                    residue(x, m.value()),
                    "sources {sources:?} target {index} at {k}"
                );
            }
        }
    }
}

#[test]
fn next_to_a_tie_either_representative_may_come_out_but_no_other() {
    let ctx = context();
    let moduli: Vec<Modulus> = (0..ctx.moduli_len()).map(|i| *ctx.modulus(i)).collect();
    let sources: Vec<usize> = (0..8).collect();
    let conv = BaseConverter::new(&moduli, &sources);
    // (D + 1)/2
    let limbs: Vec<Vec<u64>> = sources
        .iter()
        .map(|&s| vec![ctx.modulus(s).value() / 2 + 1; ctx.n()])
        .collect();
    let d: BigInt = sources
        .iter()
        .map(|&s| BigInt::from(ctx.modulus(s).value()))
        .product();
    let upper: BigInt = (&d + 1) / 2;
    let residues: Vec<u64> = [10, 20, 30]
        .iter()
        .map(|&index| {
            let out = convert(&ctx, &conv, &limbs, index);
            assert!(out.iter().all(|x| *x == out[0]));
            out[0]
        })
        .collect();
    let want = |x: &BigInt| -> Vec<u64> {
        [10, 20, 30]
            .iter()
            .map(|&index| residue(x, ctx.modulus(index).value()))
            .collect()
    };
    assert!(residues == want(&upper) || residues == want(&(upper - d)));
}

/// Nearest integer to x/d for odd d.
fn round_div(x: &BigInt, d: &BigInt) -> BigInt {
    let doubled: BigInt = x * 2 + d;
    let two_d: BigInt = d * 2;
    let floor = |a: &BigInt, b: &BigInt| {
        let q = a / b;
        if (a % b) < BigInt::from(0) { q - 1 } else { q }
    };
    floor(&doubled, &two_d)
}

fn ext_poly(ctx: &Context, limbs: usize, special: usize) -> (ExtPoly, Vec<Vec<u64>>, Vec<usize>) {
    let indices: Vec<usize> = (0..limbs + special)
        .map(|i| ctx.ext_index(limbs, i))
        .collect();
    let coefficients: Vec<Vec<u64>> = indices.iter().map(|&i| residues(ctx, i, 2)).collect();
    let mut x = ExtPoly::zero(ctx.n(), limbs, special);
    for (i, (c, &index)) in coefficients.iter().zip(&indices).enumerate() {
        let limb = &mut x.data[i * ctx.n()..(i + 1) * ctx.n()];
        limb.copy_from_slice(c);
        ctx.ntt_forward(index, limb);
    }
    (x, coefficients, indices)
}

fn check_quotient(ctx: &Context, got: &Poly, exact: &[BigInt], d: &BigInt) {
    let mut got = got.clone();
    got.to_coeff(ctx);
    for i in 0..got.limbs() {
        let q = ctx.modulus(i).value();
        for (k, x) in exact.iter().enumerate() {
            assert_eq!(
                got.limb(i)[k],
                residue(&round_div(x, d), q),
                "limb {i} at {k}"
            );
        }
    }
}

#[test]
fn mod_down_divides_by_the_special_primes_and_rounds_to_nearest() {
    let ctx = context();
    for (limbs, special) in [(1, 8), (5, 8), (9, 8), (1, 1)] {
        let (x, c, indices) = ext_poly(&ctx, limbs, special);
        let exact = centred(&ctx, &indices, &c);
        let p: BigInt = indices[limbs..]
            .iter()
            .map(|&i| BigInt::from(ctx.modulus(i).value()))
            .product();
        let [down] = ctx.mod_down([&x]);
        check_quotient(&ctx, &down, &exact, &p);
        if limbs > 1 && special == 8 {
            let both = p * ctx.modulus(limbs - 1).value();
            let (c0, c1) = ctx.mod_down_rescale_both(&x, &x);
            check_quotient(&ctx, &c0, &exact, &both);
            assert_eq!(c0, c1);
        }
    }
}

#[test]
fn rescaling_divides_by_the_top_prime_and_rounds_to_nearest() {
    let ctx = context();
    let limbs = 6;
    let indices: Vec<usize> = (0..limbs).collect();
    let c: Vec<Vec<u64>> = indices.iter().map(|&i| residues(&ctx, i, 3)).collect();
    let exact = centred(&ctx, &indices, &c);
    let mut poly = Poly::from_data(&ctx, limbs, Domain::Coeff, c.concat()).unwrap();
    poly.to_ntt(&ctx);
    let q = BigInt::from(ctx.modulus(limbs - 1).value());
    let [out] = ctx.rescale_polys([&poly]).unwrap();
    check_quotient(&ctx, &out, &exact, &q);
    assert!(ctx.rescale_polys([&poly.lowest(1)]).is_err());
}

#[test]
fn raising_the_modulus_keeps_the_centred_integer() {
    let ctx = context();
    let c = residues(&ctx, 0, 4);
    let exact = centred(&ctx, &[0], std::slice::from_ref(&c));
    let mut poly = Poly::from_data(&ctx, 1, Domain::Coeff, c).unwrap();
    poly.to_ntt(&ctx);
    let raised = ctx.mod_raise(&poly, ctx.q_len());
    check_quotient(&ctx, &raised, &exact, &BigInt::from(1));
}

#[test]
fn digits_add_up_to_the_polynomial() {
    // sum over digits of digit * (1 on its own limbs, 0 elsewhere) is the polynomial, by construction of
    // the gadget; what is to be checked is that each raised digit is one centred integer everywhere
    let ctx = context();
    for limbs in [1, 7, 8, 9, 29] {
        let indices: Vec<usize> = (0..limbs).collect();
        let c: Vec<Vec<u64>> = indices.iter().map(|&i| residues(&ctx, i, 5)).collect();
        let mut poly = Poly::from_data(&ctx, limbs, Domain::Coeff, c.concat()).unwrap();
        poly.to_ntt(&ctx);
        let digits = ctx.decompose(&poly);
        assert_eq!(digits.raised.len(), limbs.div_ceil(8));
        for (j, raised) in digits.raised.iter().enumerate() {
            let own: Vec<usize> = (8 * j..limbs.min(8 * j + 8)).collect();
            let exact = centred(&ctx, &own, &c[own[0]..own[0] + own.len()]);
            for (i, limb) in raised.chunks_exact(ctx.n()).enumerate() {
                let index = ctx.ext_index(limbs, i);
                let mut limb = limb.to_vec();
                ctx.ntt_inverse(index, &mut limb);
                let q = ctx.modulus(index).value();
                for (k, x) in exact.iter().enumerate().step_by(7) {
                    assert_eq!(
                        limb[k],
                        residue(x, q),
                        "limbs {limbs} digit {j} limb {i} at {k}"
                    );
                }
            }
        }
    }
}
