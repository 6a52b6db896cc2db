use super::*;
use crate::ifma::emulated_ifma_kernel;
use crate::isa::{Isa, kernel_for};
use crate::kernel::{Kernel, ScalarKernel};
use crate::keys::KeyId;
use crate::ntt::automorphism_table;
use crate::params::Params;
use crate::uniform::expand_uniform;

/// Uniform and extreme limbs.
fn limb(q: u64, n: usize, number: usize) -> Vec<u64> {
    match number % 6 {
        3 => vec![q - 1; n],
        4 => vec![q / 2; n],
        5 => (0..n).map(|i| if i % 3 == 0 { 0 } else { q - 1 }).collect(),
        _ => expand_uniform(&[number as u8; 32], KeyId::Relin, number, 0, q, n),
    }
}

struct Case {
    n: usize,
    digits: usize,
    babies: usize,
    giants: usize,
    repeat: usize,
    special: bool,
}

impl Case {
    fn check(&self, q: u64) {
        let m = Modulus::new(q).unwrap();
        let n = self.n;
        let digits: Vec<_> = (0..self.digits)
            .map(|i| limb(q, n, i + self.babies))
            .collect();
        let digits: Vec<&[u64]> = digits.iter().map(|d| &d[..]).collect();
        let (c0, c1) = (limb(q, n, 50), limb(q, n, 53));
        let input = (!self.special).then(|| InputLimb {
            c0: &c0,
            c1: &c1,
            p: m.shoup(q - 2),
        });
        let tables: Vec<_> = (0..self.babies)
            .map(|b| automorphism_table(n, (2 * b * 37 + 5) % (2 * n)))
            .collect();
        let keys: Vec<_> = (0..self.babies * self.digits)
            .map(|i| (limb(q, n, 2 * i), limb(q, n, 2 * i + 3)))
            .collect();
        let babies: Vec<_> = (0..self.babies)
            .map(|b| {
                (b != 1).then(|| Turn {
                    table: &tables[b],
                    key: keys[b * self.digits..(b + 1) * self.digits]
                        .iter()
                        .map(|(b, a)| (&b[..], &a[..]))
                        .collect(),
                })
            })
            .collect();
        let values: Vec<_> = (0..self.giants * self.babies)
            .map(|i| limb(q, n / self.repeat, i + 1))
            .collect();
        let giants: Vec<Vec<(usize, &[u64])>> = (0..self.giants)
            .map(|g| {
                let count = self.babies - g % self.babies.min(3);
                (0..count)
                    .map(|b| (b, &values[g * self.babies + b][..]))
                    .collect()
            })
            .collect();
        let run = |kernel: &dyn Kernel, pieces: usize| {
            let mut out = vec![(vec![1; n], vec![2; n]); self.giants];
            for piece in 0..pieces {
                let len = n / pieces;
                let job = BabySums {
                    digits: &digits,
                    input,
                    babies: &babies,
                    giants: &giants,
                    start: piece * len,
                };
                let range = piece * len..(piece + 1) * len;
                let mut part: Vec<SumLimb<'_>> = out
                    .iter_mut()
                    .map(|(a, b)| (&mut a[range.clone()], &mut b[range.clone()]))
                    .collect();
                kernel.baby_sums(&m, &job, &mut part);
            }
            out
        };
        let want = run(&ScalarKernel, 1);
        assert_eq!(run(&ScalarKernel, 4), want);
        // the definition, one coefficient
        let k = n / 2 + 1;
        let sum = giants[0].iter().fold(0, |acc, (b, y)| {
            let x = baby_at(
                &m,
                &job_of(&digits, input, &babies, &giants),
                babies[*b].as_ref(),
                k,
            );
            m.add(acc, m.mul(x.0, y[k / self.repeat]))
        });
        assert_eq!(want[0].0[k], sum);
        let mut kernels = vec![emulated_ifma_kernel()];
        kernels.extend(Isa::ALL.into_iter().filter_map(|isa| kernel_for(isa).ok()));
        for kernel in kernels {
            for pieces in [1, 2, 4] {
                let got = run(&*kernel, pieces);
                assert!(
                    got == want,
                    "{}: q {q}, {} babies",
                    kernel.name(),
                    self.babies
                );
            }
        }
    }
}

fn job_of<'a>(
    digits: &'a [&'a [u64]],
    input: Option<InputLimb<'a>>,
    babies: &'a [Option<Turn<'a>>],
    giants: &'a [Vec<(usize, &'a [u64])>],
) -> BabySums<'a> {
    BabySums {
        digits,
        input,
        babies,
        giants,
        start: 0,
    }
}

#[test]
fn kernels_agree_on_hoisted_sums() {
    let p = Params::by_name("n16-128").unwrap();
    for q in [p.q[0], p.q[1], p.q[13], p.q[18], p.q[28], p.p[0]] {
        for digits in 1..=5 {
            for (n, babies, repeat) in [(1024, 3, 1), (2048, 16, 4), (2048, 30, 16), (4096, 9, 2)] {
                let case = Case {
                    n,
                    digits,
                    babies,
                    giants: 3,
                    repeat,
                    special: (digits + babies).is_multiple_of(2),
                };
                case.check(q);
            }
        }
        for (repeat, n) in [(8, 1024), (1024, 1024), (2048, 4096), (32, 64)] {
            let case = Case {
                n,
                digits: 2,
                babies: 10,
                giants: 2,
                repeat,
                special: false,
            };
            case.check(q);
        }
    }
}
