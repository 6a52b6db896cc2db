//! Every kernel against the scalar reference.

use super::*;
use crate::ifma::emulated_ifma_kernel;
use crate::isa::{Isa, kernel_for};
use crate::keys::KeyId;
use crate::modular::is_prime;
use crate::ntt::automorphism_table;
use crate::params::Params;
use crate::uniform::expand_uniform;
use std::sync::Arc;

/// The kernels of this processor, and the one that can be emulated.
fn kernels() -> Vec<Arc<dyn Kernel>> {
    let mut kernels = vec![emulated_ifma_kernel()];
    for isa in Isa::ALL {
        match kernel_for(isa) {
            Ok(kernel) => kernels.push(kernel),
            Err(error) => eprintln!("skipped: {error}"),
        }
    }
    kernels
}

/// Primes of a real chain, and those next to the bounds 2^46 and 2^50 of the kernels.
fn primes() -> Vec<u64> {
    let p = Params::by_name("n16-128").unwrap();
    let below = |top: u64| (1..).map(|i| top + 1 - (i << 17)).find(|&q| is_prime(q));
    let above = (0..)
        .map(|i| (1 << 46) + 1 + (i << 17))
        .find(|&q| is_prime(q));
    let edges = [below(1 << 50), below(1 << 46), above].map(Option::unwrap);
    [vec![p.q[0], p.q[1], p.q[18], p.q[28]], edges.to_vec()].concat()
}

fn uniform(q: u64, n: usize, salt: u8) -> Vec<u64> {
    expand_uniform(&[salt; 32], KeyId::Relin, 0, 0, q, n)
}

/// Uniform, extreme and alternating inputs.
fn inputs(q: u64, n: usize) -> Vec<Vec<u64>> {
    let alternating = |period: usize| {
        (0..n)
            .map(|i| {
                if (i / period).is_multiple_of(2) {
                    q - 1
                } else {
                    0
                }
            })
            .collect()
    };
    vec![
        uniform(q, n, 1),
        vec![0; n],
        vec![q - 1; n],
        vec![q / 2; n],
        vec![q / 2 + 1; n],
        alternating(1),
        alternating(n / 2),
    ]
}

#[test]
fn transforms_agree_with_the_reference_at_every_size() {
    for q in primes() {
        let m = Modulus::new(q).unwrap();
        let full = NttTable::new(m, 1 << 16).unwrap();
        for log_n in 3..=16 {
            let n = 1 << log_n;
            let table = NttTable::new(m, n).unwrap();
            for a in inputs(q, n) {
                let (mut forward, mut sub, mut inverse) = (a.clone(), a.clone(), a.clone());
                ScalarKernel.ntt_forward(&table, &mut forward);
                ScalarKernel.ntt_forward(&full, &mut sub);
                ScalarKernel.ntt_inverse(&table, &mut inverse);
                for k in kernels() {
                    let name = k.name();
                    let mut x = a.clone();
                    k.ntt_forward(&table, &mut x);
                    assert_eq!(x, forward, "{name}: forward, q {q} n {n}");
                    x.copy_from_slice(&a);
                    k.ntt_forward(&full, &mut x);
                    assert_eq!(x, sub, "{name}: sub-ring, q {q} n {n}");
                    x.copy_from_slice(&a);
                    k.ntt_inverse(&table, &mut x);
                    assert_eq!(x, inverse, "{name}: inverse, q {q} n {n}");
                }
            }
        }
    }
}

#[test]
fn sums_of_products_agree_with_the_reference() {
    for q in primes() {
        let m = Modulus::new(q).unwrap();
        for n in [4, 8, 64, 1024, 4096] {
            let table = automorphism_table(n.max(8), 5);
            let inputs = inputs(q, n);
            for count in [1, 4, 8, 9, 17, 40] {
                for repeat in [1, 2, 4, 8, 16, 1024] {
                    if repeat > n {
                        continue;
                    }
                    let ys: Vec<_> = (0..count)
                        .map(|i| match i % 3 {
                            0 => uniform(q, n / repeat, i as u8),
                            1 => vec![q - 1; n / repeat],
                            _ => uniform(q, n / repeat, 99),
                        })
                        .collect();
                    let xs = inputs.iter().cycle();
                    let terms: Vec<_> = xs.zip(&ys).map(|(x, y)| (&x[..], &y[..])).collect();
                    let mut sum = vec![2; n];
                    ScalarKernel.dot(&m, &mut sum, &terms);
                    for k in kernels() {
                        let name = k.name();
                        let mut a = vec![1; n];
                        k.dot(&m, &mut a, &terms);
                        assert_eq!(a, sum, "{name}: q {q} n {n} count {count} repeat {repeat}");
                    }
                    if repeat == 1 && n >= 8 {
                        let mut other = terms.clone();
                        other.reverse();
                        let other = terms.iter().zip(&other);
                        let other: Vec<_> = other.map(|((x, _), (_, y))| (*x, *y)).collect();
                        let (mut b0, mut b1) = (vec![2; n], vec![2; n]);
                        ScalarKernel.dot_permuted(&m, &mut b0, &mut b1, &table, &terms, &other);
                        for k in kernels() {
                            let (mut a0, mut a1) = (vec![1; n], vec![1; n]);
                            k.dot_permuted(&m, &mut a0, &mut a1, &table, &terms, &other);
                            assert_eq!((&a0, &a1), (&b0, &b1), "{}", k.name());
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn long_sums_of_the_largest_products_agree_with_the_reference() {
    let q = primes()[4];
    let m = Modulus::new(q).unwrap();
    let (x, table) = (vec![q - 1; 8], automorphism_table(8, 5));
    for count in [2047, 2048, 2049, 10_000] {
        let terms = vec![(&x[..], &x[..]); count];
        let mut sum = [0; 8];
        ScalarKernel.dot(&m, &mut sum, &terms);
        for k in kernels() {
            let (mut a, mut b) = ([0; 8], [0; 8]);
            k.dot(&m, &mut a, &terms);
            assert_eq!(a, sum, "{}", k.name());
            k.dot_permuted(&m, &mut a, &mut b, &table, &terms, &terms);
            assert_eq!((a, b), (sum, sum), "{}", k.name());
        }
    }
}

#[test]
fn conversions_agree_with_the_reference() {
    let n = 264;
    for q in primes() {
        let m = Modulus::new(q).unwrap();
        for sources in 1..=9 {
            for extreme in [false, true] {
                let mut hats: Vec<u64> = (0..sources)
                    .flat_map(|i| uniform((1 << 50) - 27, n, i as u8))
                    .collect();
                let mut weights: Vec<u64> =
                    (0..=sources).map(|i| uniform(q, 1, i as u8)[0]).collect();
                if extreme {
                    hats.fill((1 << 50) - 1);
                    weights.fill(q - 1);
                }
                let overflow: Vec<u64> = (0..n).map(|i| (i % (sources + 1)) as u64).collect();
                let mut b = vec![2; n];
                ScalarKernel.convert(&m, &weights, &hats, &overflow, &mut b);
                for k in kernels() {
                    let mut a = vec![1; n];
                    k.convert(&m, &weights, &hats, &overflow, &mut a);
                    assert_eq!(a, b, "{}: q {q} sources {sources}", k.name());
                }
            }
        }
        for source in primes() {
            for x in inputs(source, n) {
                let mut b = vec![0; n];
                ScalarKernel.lift(source, &m, &x, &mut b);
                for k in kernels() {
                    let mut a = vec![1; n];
                    k.lift(source, &m, &x, &mut a);
                    assert_eq!(a, b, "{}: lift {source} to {q}", k.name());
                }
            }
        }
    }
}

#[test]
fn elementwise_operations_agree_with_the_reference() {
    // on whole vectors and on a ragged end
    for n in [264, 12] {
        for q in primes() {
            let m = Modulus::new(q).unwrap();
            for (x, y) in inputs(q, n).iter().zip(inputs(q, n).iter().rev()) {
                for w in [0, 1, q - 1, q / 2, q / 2 + 1, 12345] {
                    let w = m.shoup(w);
                    let all = |k: &dyn Kernel| {
                        let mut out = [y.clone(), y.clone(), y.clone(), y.clone(), y.clone()];
                        k.sub_scale(&m, &mut out[0], x, w);
                        k.add_scaled(&m, &mut out[1], x, w);
                        k.scale(&m, &mut out[2], w);
                        k.add(&m, &mut out[3], x);
                        k.sub(&m, &mut out[4], x);
                        out
                    };
                    let want = all(&ScalarKernel);
                    for k in kernels() {
                        assert_eq!(all(&*k), want, "{}: q {q} w {w:?}", k.name());
                    }
                }
            }
        }
    }
}

#[test]
fn conversions_to_several_targets_agree_with_the_reference() {
    let n = 512;
    let moduli: Vec<Modulus> = primes()
        .into_iter()
        .map(|q| Modulus::new(q).unwrap())
        .collect();
    for sources in 1..=9 {
        for edge in 0..6 {
            let mut hats: Vec<u64> = (0..sources)
                .flat_map(|i| uniform((1 << 50) - 27, n, i as u8))
                .collect();
            let mut overflow: Vec<u64> = (0..n).map(|i| (i % (sources + 1)) as u64).collect();
            if edge == 1 {
                hats.fill(0);
            } else if edge > 1 {
                hats.fill((1 << 50) - 1);
                overflow.fill(sources as u64);
            }
            // twice over, so that there are more than a kernel takes at once
            let moduli = [&moduli[..], &moduli[..]].concat();
            let weights: Vec<Vec<u64>> = moduli
                .iter()
                .enumerate()
                .map(|(t, m)| {
                    let q = m.value();
                    match edge {
                        2 => vec![q / 2; sources + 1],
                        3 => vec![q / 2 + 1; sources + 1],
                        4 => vec![q - 1; sources + 1],
                        5 => vec![0; sources + 1],
                        _ => uniform(q, sources + 1, t as u8),
                    }
                })
                .collect();
            let targets: Vec<_> = moduli
                .iter()
                .zip(&weights)
                .map(|(m, w)| (m, &w[..]))
                .collect();
            let all = |k: &dyn Kernel| {
                let mut out = vec![1; n * targets.len()];
                let mut outs: Vec<_> = out.chunks_exact_mut(n).collect();
                k.convert_many(&targets, &hats, &overflow, &mut outs);
                out
            };
            let want = all(&ScalarKernel);
            for k in kernels() {
                assert_eq!(
                    all(&*k),
                    want,
                    "{}: sources {sources} edge {edge}",
                    k.name()
                );
            }
        }
    }
}

#[test]
fn key_products_agree_with_the_reference() {
    for (n, galois) in [(512, 347), (512, 5), (264, 1)] {
        let table = match galois {
            1 => (0..n as u32).collect(),
            _ => automorphism_table(n, galois),
        };
        for q in primes() {
            let m = Modulus::new(q).unwrap();
            let inputs = inputs(q, n);
            let largest = vec![q - 1; n];
            for count in 0..=6 {
                for (table, extreme) in [(None, true), (None, false), (Some(&table[..]), false)] {
                    let terms: Vec<_> = (0..count)
                        .map(|i| {
                            if extreme {
                                (&largest[..], &largest[..], &largest[..])
                            } else {
                                let at = |j: usize| &inputs[(i + j) % inputs.len()][..];
                                (at(0), at(1), at(3))
                            }
                        })
                        .collect();
                    for addends in [
                        [None, None],
                        [Some((&inputs[0][..], m.shoup(q / 3))), None],
                        [
                            Some((&largest[..], m.shoup(q - 1))),
                            Some((&largest[..], m.shoup(1))),
                        ],
                    ] {
                        let product = KeyProduct {
                            table,
                            terms: &terms,
                            addends,
                        };
                        let both = |k: &dyn Kernel| {
                            let (mut x, mut y) = (vec![1; n], vec![2; n]);
                            k.key_product(&m, &mut x, &mut y, &product);
                            (x, y)
                        };
                        let want = both(&ScalarKernel);
                        for k in kernels() {
                            assert_eq!(both(&*k), want, "{}: q {q} terms {count}", k.name());
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn overflow_counts_agree_with_the_reference_next_to_ties_too() {
    let n = 300;
    let p = Params::by_name("n16-128").unwrap();
    let moduli: Vec<Modulus> =
        p.q.iter()
            .chain(&p.p)
            .map(|&q| Modulus::new(q).unwrap())
            .collect();
    for sources in [
        vec![0],
        vec![3, 4],
        (0..8).collect(),
        (29..37).chain([7]).collect::<Vec<_>>(),
    ] {
        let conv = crate::convert::BaseConverter::new(&moduli, &sources);
        // the integers 0, 1, -1, (D - 1)/2, (D + 1)/2 and random ones
        let hats: Vec<Vec<u64>> = conv
            .sources
            .iter()
            .enumerate()
            .map(|(i, c)| {
                let q = c.modulus.value();
                let mut x = uniform(q, n, i as u8);
                x[..5].copy_from_slice(&[0, 1, q - 1, q / 2, q / 2 + 1]);
                for x in &mut x[..6] {
                    *x = c.modulus.mul_shoup(c.hat_inverse, *x);
                }
                x
            })
            .collect();
        let hats: Vec<&[u64]> = hats.iter().map(|h| &h[..]).collect();
        let mut want = vec![99; n];
        ScalarKernel.count_overflow(&conv.sources, &hats, &mut want);
        for k in kernels() {
            let mut got = vec![98; n];
            k.count_overflow(&conv.sources, &hats, &mut got);
            assert_eq!(got, want, "{}: sources {sources:?}", k.name());
        }
    }
}

#[test]
fn raised_limbs_agree_with_the_reference() {
    let p = Params::by_name("n16-128").unwrap();
    let mut moduli: Vec<u64> = p.q.iter().chain(&p.p).copied().collect();
    moduli.extend(&primes()[4..]);
    let moduli: Vec<Modulus> = moduli.iter().map(|&q| Modulus::new(q).unwrap()).collect();
    for n in [128, 1024, 2048] {
        let table = |&m: &Modulus| NttTable::new(m, n).unwrap();
        let tables: Vec<NttTable> = moduli.iter().map(table).collect();
        for sources in [
            vec![0],
            vec![3, 4],
            vec![37, 1, 38, 28, 39],
            (0..8).collect(),
            (21..29).collect(),
            (29..37).chain([7]).collect::<Vec<_>>(),
        ] {
            let conv = crate::convert::BaseConverter::new(&moduli, &sources);
            for edge in 0..4 {
                let limb = |(i, c): (usize, &SourceConstants)| {
                    let q = c.modulus.value();
                    let mut x = match edge {
                        0 => uniform(q, n, i as u8),
                        1 => vec![q / 2; n],
                        2 => vec![q / 2 + 1; n],
                        _ => vec![q - 1; n],
                    };
                    // integers next to 0 and to the two ties
                    x[..6].copy_from_slice(&[0, 1, q - 1, q - 2, q / 2, q / 2 + 1]);
                    x
                };
                let limbs: Vec<Vec<u64>> = conv.sources.iter().enumerate().map(limb).collect();
                let limbs: Vec<&[u64]> = limbs.iter().map(|l| &l[..]).collect();
                let all = |k: &dyn Kernel| {
                    let mut prepared = vec![1; n * (sources.len() + 1)];
                    k.prepare(&conv.sources, &limbs, &mut prepared);
                    let mut outs = vec![vec![1; n]; tables.len()];
                    let mut targets: Vec<Raise> = Vec::new();
                    for (t, out) in outs.iter_mut().enumerate() {
                        let m = tables[t].modulus();
                        let x = limbs[t % limbs.len()];
                        targets.push(Raise {
                            table: &tables[t],
                            weights: conv.target(t),
                            out,
                            // residues of a smaller modulus are residues
                            finish: (x.iter().max() < Some(&m.value()) && t % 2 == 0)
                                .then(|| (x, m.shoup(m.value() / 3))),
                        });
                    }
                    k.raise(&prepared, &mut targets);
                    outs
                };
                let want = all(&ScalarKernel);
                for k in kernels() {
                    assert!(
                        all(&*k) == want,
                        "{}: n {n} sources {sources:?} edge {edge}",
                        k.name()
                    );
                }
            }
        }
    }
}

#[test]
fn inverse_transforms_from_elsewhere_are_those_in_place() {
    for q in primes() {
        for log_n in [3, 4, 5, 10, 13] {
            let n = 1 << log_n;
            let table = NttTable::new(Modulus::new(q).unwrap(), n).unwrap();
            for x in inputs(q, n) {
                let mut want = x.clone();
                ScalarKernel.ntt_inverse(&table, &mut want);
                for k in kernels() {
                    let mut out = vec![7; n];
                    k.ntt_inverse_from(&table, &x, &mut out);
                    assert_eq!(out, want, "{}: q {q} n {n}", k.name());
                }
            }
        }
    }
}

#[test]
fn automorphisms_move_the_entries_of_the_table() {
    for n in [4, 8, 16, 1024] {
        let x: Vec<u64> = (0..n as u64).map(|i| i * 3 + 1).collect();
        for galois in (1..2 * n).step_by(if n > 16 { 38 } else { 2 }) {
            let table = automorphism_table(n, galois);
            let want: Vec<u64> = table.iter().map(|&k| x[k as usize]).collect();
            for k in kernels() {
                let mut out = vec![0; n];
                k.permute(&table, &x, &mut out);
                assert_eq!(out, want, "{}: n {n} galois {galois}", k.name());
            }
        }
    }
}

/// Inputs that make the sums of a key product and of a fused pass as large as they get.
#[test]
fn the_largest_key_products_agree_with_the_reference() {
    for q in primes() {
        let m = Modulus::new(q).unwrap();
        let (n, top) = (512, vec![q - 1; 512]);
        for terms in 0..=5 {
            let all = vec![(&top[..], &top[..], &top[..]); terms];
            let product = KeyProduct {
                table: None,
                terms: &all,
                addends: [Some((&top[..], m.shoup(q - 1))); 2],
            };
            let sums = |k: &dyn Kernel| {
                let (mut a, mut b) = (vec![1; n], vec![2; n]);
                k.key_product(&m, &mut a, &mut b, &product);
                (a, b)
            };
            let want = sums(&ScalarKernel);
            for k in kernels() {
                assert_eq!(sums(&*k), want, "{}: q {q} terms {terms}", k.name());
            }
        }
    }
}

#[test]
fn residues_of_signed_integers_agree_with_the_reference() {
    for q in primes() {
        let m = Modulus::new(q).unwrap();
        for top in [1 << 20, (1 << 51) - 1, 1 << 51, 1 << 52, i64::MAX] {
            let mut x: Vec<i64> = uniform(q, 700, 3).iter().map(|&x| x as i64 % top).collect();
            for (i, x) in x.iter_mut().enumerate().filter(|(i, _)| i % 3 == 0) {
                *x = [0, -1, top - 1, -top, -*x][i % 5];
            }
            let mut want = vec![1; x.len()];
            ScalarKernel.residues(&m, &x, &mut want);
            for k in kernels() {
                let mut out = vec![2; x.len()];
                k.residues(&m, &x, &mut out);
                assert_eq!(out, want, "{}: q {q} top {top}", k.name());
            }
        }
    }
}
