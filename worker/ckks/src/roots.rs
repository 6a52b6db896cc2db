//! Roots of unity for the encoder, in double-double arithmetic made of IEEE + - * / sqrt only (Dekker 1971),
//! so that the tables are the same on every machine. The standard library's sine is not.

use crate::complex::Complex;

/// Unevaluated sum hi + lo with |lo| <= ulp(hi)/2.
#[derive(Clone, Copy)]
struct Dd {
    hi: f64,
    lo: f64,
}

fn quick_two_sum(a: f64, b: f64) -> Dd {
    let hi = a + b;
    Dd {
        hi,
        lo: b - (hi - a),
    }
}

fn two_sum(a: f64, b: f64) -> Dd {
    let hi = a + b;
    let t = hi - a;
    Dd {
        hi,
        lo: (a - (hi - t)) + (b - t),
    }
}

fn split(a: f64) -> (f64, f64) {
    let t = 134217729.0 * a;
    let hi = t - (t - a);
    (hi, a - hi)
}

fn two_prod(a: f64, b: f64) -> Dd {
    let hi = a * b;
    let ((ah, al), (bh, bl)) = (split(a), split(b));
    Dd {
        hi,
        lo: ((ah * bh - hi) + ah * bl + al * bh) + al * bl,
    }
}

impl Dd {
    fn new(x: f64) -> Dd {
        Dd { hi: x, lo: 0.0 }
    }

    fn add(self, o: Dd) -> Dd {
        let s = two_sum(self.hi, o.hi);
        quick_two_sum(s.hi, s.lo + (self.lo + o.lo))
    }

    fn sub(self, o: Dd) -> Dd {
        self.add(Dd {
            hi: -o.hi,
            lo: -o.lo,
        })
    }

    fn mul(self, o: Dd) -> Dd {
        let p = two_prod(self.hi, o.hi);
        quick_two_sum(p.hi, p.lo + (self.hi * o.lo + self.lo * o.hi))
    }

    fn div(self, o: Dd) -> Dd {
        let q = self.hi / o.hi;
        let r = self.sub(o.mul(Dd::new(q)));
        quick_two_sum(q, r.hi / o.hi)
    }

    /// Square root of a positive number: one Newton step from the double root.
    fn sqrt(self) -> Dd {
        let s = self.hi.sqrt();
        let r = self.sub(two_prod(s, s));
        quick_two_sum(s, r.hi / (2.0 * s))
    }
}

/// exp(i*pi*k/n) for 0 <= k < 2n, each part rounded to f64.
fn unit_roots(n: usize) -> Vec<Complex> {
    // halve the angle from pi/2 down to pi/n
    let half = Dd::new(0.5);
    let one = Dd::new(1.0);
    let mut ladder = vec![(Dd::new(-1.0), Dd::new(0.0)), (Dd::new(0.0), one)];
    while 1 << (ladder.len() - 1) < n {
        let (c, s) = ladder[ladder.len() - 1];
        let c2 = one.add(c).mul(half).sqrt();
        let s2 = s.mul(half).div(c2);
        ladder.push((c2, s2));
    }
    let mut roots: Vec<(Dd, Dd)> = vec![(one, Dd::new(0.0))];
    for (c, s) in ladder.iter().rev() {
        for j in 0..roots.len() {
            let (a, b) = roots[j];
            roots.push((a.mul(*c).sub(b.mul(*s)), a.mul(*s).add(b.mul(*c))));
        }
    }
    roots
        .into_iter()
        .map(|(c, s)| Complex::new(c.hi, s.hi))
        .collect()
}

/// Twiddles of the special transform: `layers[b][j] = exp(2*pi*i*(5^j mod 4L)/(4L))` with L = 2^(b+1), for
/// 0 <= j < L/2, up to L = slots.
pub(crate) fn special_twiddles(slots: usize) -> Vec<Vec<Complex>> {
    let n = 2 * slots;
    let roots = unit_roots(n);
    let mut layers = Vec::new();
    let mut len = 2;
    while len <= slots {
        let gap = slots / len;
        let mut power = 1;
        layers.push(
            (0..len / 2)
                .map(|_| {
                    let w = roots[power * gap];
                    power = power * 5 % (4 * len);
                    w
                })
                .collect(),
        );
        len *= 2;
    }
    layers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roots_agree_with_the_library() {
        let n = 1024;
        for (k, r) in unit_roots(n).into_iter().enumerate() {
            let angle = std::f64::consts::PI * k as f64 / n as f64;
            assert!((r.re - angle.cos()).abs() < 1e-15, "cos {k}");
            assert!((r.im - angle.sin()).abs() < 1e-15, "sin {k}");
        }
    }
}
