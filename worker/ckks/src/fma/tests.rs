use super::*;
use crate::keys::{KeyId, expand_uniform};
use crate::ntt::automorphism_table;
use crate::params::Params;

fn kernel() -> Option<FmaKernel> {
    let k = FmaKernel::try_new();
    if k.is_none() {
        eprintln!("no fused multiply-add here: nothing to compare");
    }
    k
}

fn primes() -> Vec<u64> {
    let p = Params::by_name("n16-128").unwrap();
    vec![p.q[0], p.q[1], p.q[13], p.q[18], p.q[28], p.p[0]]
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
    let Some(k) = kernel() else { return };
    for q in primes() {
        let m = Modulus::new(q).unwrap();
        let full = NttTable::new(m, 1 << 16).unwrap();
        for log_n in 3..=16 {
            let n = 1 << log_n;
            let table = NttTable::new(m, n).unwrap();
            for a in inputs(q, n) {
                let (mut x, mut y) = (a.clone(), a.clone());
                k.ntt_forward(&table, &mut x);
                ScalarKernel.ntt_forward(&table, &mut y);
                assert_eq!(x, y, "forward, q {q} n {n}");
                let mut sub = a.clone();
                k.ntt_forward(&full, &mut sub);
                ScalarKernel.ntt_forward(&full, &mut y);
                let mut z = a.clone();
                ScalarKernel.ntt_forward(&full, &mut z);
                assert_eq!(sub, z, "sub-ring, q {q} n {n}");
                let (mut x, mut y) = (a.clone(), a);
                k.ntt_inverse(&table, &mut x);
                ScalarKernel.ntt_inverse(&table, &mut y);
                assert_eq!(x, y, "inverse, q {q} n {n}");
            }
        }
    }
}

#[test]
fn sums_of_products_agree_with_the_reference() {
    let Some(k) = kernel() else { return };
    for q in primes() {
        let m = Modulus::new(q).unwrap();
        for n in [4, 64, 1024, 4096] {
            let table = automorphism_table(n.max(8), 5);
            for count in [1, 4, 8, 9, 17, 40] {
                for repeat in [1, 2, 4, 8, 16, 1024] {
                    if repeat > n {
                        continue;
                    }
                    let xs: Vec<_> = (0..count).map(|i| inputs(q, n)[i % 7].clone()).collect();
                    let ys: Vec<_> = (0..count)
                        .map(|i| match i % 3 {
                            0 => uniform(q, n / repeat, i as u8),
                            1 => vec![q - 1; n / repeat],
                            _ => uniform(q, n / repeat, 99),
                        })
                        .collect();
                    let terms: Vec<_> = xs.iter().zip(&ys).map(|(x, y)| (&x[..], &y[..])).collect();
                    let (mut a, mut b) = (vec![1; n], vec![2; n]);
                    k.dot(&m, &mut a, &terms);
                    ScalarKernel.dot(&m, &mut b, &terms);
                    assert_eq!(a, b, "q {q} n {n} count {count} repeat {repeat}");
                    if repeat == 1 && n >= 8 {
                        let (mut a1, mut b1) = (vec![1; n], vec![2; n]);
                        let swapped: Vec<_> = terms.iter().map(|(x, y)| (*x, *y)).collect();
                        k.dot_permuted(&m, &mut a, &mut a1, &table, &terms, &swapped);
                        ScalarKernel.dot_permuted(&m, &mut b, &mut b1, &table, &terms, &swapped);
                        assert_eq!((a, a1), (b, b1));
                    }
                }
            }
        }
    }
}

#[test]
fn conversions_and_scalings_agree_with_the_reference() {
    let Some(k) = kernel() else { return };
    let n = 1024;
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
                    weights.fill(q / 2);
                }
                let overflow: Vec<u64> = (0..n).map(|i| (i % (sources + 1)) as u64).collect();
                let (mut a, mut b) = (vec![1; n], vec![2; n]);
                k.convert(&m, &weights, &hats, &overflow, &mut a);
                ScalarKernel.convert(&m, &weights, &hats, &overflow, &mut b);
                assert_eq!(a, b, "q {q} sources {sources}");
            }
        }
        for source in primes() {
            for x in inputs(source, n) {
                let (mut a, mut b) = (vec![0; n], vec![0; n]);
                k.lift(source, &m, &x, &mut a);
                ScalarKernel.lift(source, &m, &x, &mut b);
                assert_eq!(a, b, "lift {source} to {q}");
            }
        }
        for (x, y) in inputs(q, n).into_iter().zip(inputs(q, n).into_iter().rev()) {
            for w in [0, 1, q - 1, q / 2, q / 2 + 1, 12345] {
                let w = m.shoup(w);
                let (mut a, mut b) = (y.clone(), y.clone());
                k.sub_scale(&m, &mut a, &x, w);
                ScalarKernel.sub_scale(&m, &mut b, &x, w);
                assert_eq!(a, b);
                k.add_scaled(&m, &mut a, &x, w);
                ScalarKernel.add_scaled(&m, &mut b, &x, w);
                assert_eq!(a, b);
                k.scale(&m, &mut a, w);
                ScalarKernel.scale(&m, &mut b, w);
                assert_eq!(a, b);
            }
        }
    }
}
