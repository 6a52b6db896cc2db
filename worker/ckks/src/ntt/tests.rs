use super::*;
use crate::context::Context;
use crate::kernel::{Kernel, ScalarKernel};
use crate::keys::KeyId;
use crate::params::Params;
use crate::uniform::expand_uniform;

fn residues(q: u64, n: usize, salt: u8) -> Vec<u64> {
    expand_uniform(&[salt; 32], KeyId::Relin, 0, 0, q, n)
}

fn schoolbook(m: &Modulus, a: &[u64], b: &[u64]) -> Vec<u64> {
    let n = a.len();
    let mut out = vec![0; n];
    for (i, &x) in a.iter().enumerate() {
        for (j, &y) in b.iter().enumerate() {
            let p = m.mul(x, y);
            let k = (i + j) % n;
            out[k] = if i + j < n {
                m.add(out[k], p)
            } else {
                m.sub(out[k], p)
            };
        }
    }
    out
}

fn some_primes() -> Vec<u64> {
    let p = Params::by_name("n16-128").unwrap();
    vec![p.q[0], p.q[1], p.q[18], p.q[28], p.p[7]]
}

#[test]
fn products_agree_with_schoolbook() {
    for q in some_primes() {
        let m = Modulus::new(q).unwrap();
        for n in [8, 16, 64, 256, 512] {
            let t = NttTable::new(m, n).unwrap();
            for (a, b) in [
                (residues(q, n, 1), residues(q, n, 2)),
                (vec![q - 1; n], vec![q - 1; n]),
                (vec![0; n], vec![q - 1; n]),
            ] {
                let (mut x, mut y) = (a.clone(), b.clone());
                ScalarKernel.ntt_forward(&t, &mut x);
                ScalarKernel.ntt_forward(&t, &mut y);
                let mut z = vec![0; n];
                ScalarKernel.mul(&m, &mut z, &x, &y);
                ScalarKernel.ntt_inverse(&t, &mut z);
                assert_eq!(z, schoolbook(&m, &a, &b), "q {q} n {n}");
            }
        }
    }
}

#[test]
fn entries_are_values_at_the_documented_points() {
    let (q, n) = (some_primes()[1], 32);
    let m = Modulus::new(q).unwrap();
    let t = NttTable::new(m, n).unwrap();
    let a = residues(q, n, 3);
    let mut x = a.clone();
    ScalarKernel.ntt_forward(&t, &mut x);
    // forward[n/2] is psi^rev(n/2) = psi
    let psi = t.forward[n / 2].w;
    for (k, &got) in x.iter().enumerate() {
        let point = m.pow(psi, 2 * reverse_bits(k, 5) as u64 + 1);
        let want = a
            .iter()
            .rev()
            .fold(0, |acc, &c| m.add(m.mul(acc, point), c));
        assert_eq!(got, want);
    }
}

#[test]
fn the_inverse_undoes_the_forward_transform_at_every_size() {
    for q in some_primes() {
        let m = Modulus::new(q).unwrap();
        for log_n in 3..=16 {
            let n = 1 << log_n;
            let t = NttTable::new(m, n).unwrap();
            for a in [residues(q, n, 4), vec![q - 1; n]] {
                let mut x = a.clone();
                ScalarKernel.ntt_forward(&t, &mut x);
                assert!(x.iter().all(|&r| r < q));
                ScalarKernel.ntt_inverse(&t, &mut x);
                assert_eq!(x, a, "q {q} n {n}");
            }
        }
    }
}

#[test]
fn a_sub_ring_transform_is_the_full_one_without_repetition() {
    let q = some_primes()[0];
    let m = Modulus::new(q).unwrap();
    let n = 1024;
    let t = NttTable::new(m, n).unwrap();
    for len in [2, 4, 8, 64, 512, 1024] {
        let mut short = residues(q, len, 5);
        let mut long = vec![0; n];
        for (i, &x) in short.iter().enumerate() {
            long[i * n / len] = x;
        }
        ScalarKernel.ntt_forward(&t, &mut short);
        ScalarKernel.ntt_forward(&t, &mut long);
        for (k, x) in long.iter().enumerate() {
            assert_eq!(*x, short[k * len / n], "len {len}");
        }
    }
}

#[test]
fn the_permutation_is_the_automorphism() {
    let ctx = Context::new(Params::by_name("n10-INSECURE").unwrap()).unwrap();
    let n = ctx.n();
    let m = ctx.modulus(3);
    let a = residues(m.value(), n, 6);
    for galois in [5, 25, ctx.galois_rotation(77), ctx.galois_conjugation()] {
        let mut moved = vec![0; n];
        for (i, &x) in a.iter().enumerate() {
            let e = i * galois % (2 * n);
            moved[e % n] = if e < n { x } else { m.neg(x) };
        }
        let mut x = a.clone();
        ctx.ntt_forward(3, &mut x);
        ctx.ntt_forward(3, &mut moved);
        let table = ctx.automorphism(galois);
        let permuted: Vec<u64> = table.iter().map(|&k| x[k as usize]).collect();
        assert_eq!(permuted, moved);
    }
}
