//! Plaintext simulation: slots in f64, the levels of the real engine, checks that no value leaves the
//! interval of a polynomial or of a bootstrap, and optional noise.

use std::cell::{Cell, RefCell};

use cipherhop_ckks::Complex;

use crate::backend::{Backend, Poly, poly_depth};
use crate::error::HopError;
use crate::lin::LinearSpec;

/// A slot vector with a level.
#[derive(Debug, Clone)]
pub struct SimCt {
    /// All slots.
    pub slots: Vec<Complex>,
    /// Level.
    pub level: usize,
}

/// What a polynomial of that name stands for, at an argument in [-1, 1]; None keeps the polynomial.
pub type ExactFunction = Box<dyn Fn(&str, f64) -> Option<f64>>;

/// The simulation.
pub struct Sim {
    slots: usize,
    boot_in: usize,
    boot_out: usize,
    boot_noise: f64,
    rescale_noise: f64,
    state: Cell<u64>,
    used: RefCell<Vec<(String, f64)>>,
    exact: Option<ExactFunction>,
}

impl std::fmt::Debug for Sim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sim")
            .field("slots", &self.slots)
            .field("boot_noise", &self.boot_noise)
            .field("rescale_noise", &self.rescale_noise)
            .finish_non_exhaustive()
    }
}

const EDGE: f64 = 1.0 + 1e-3;

impl Sim {
    /// Without noise.
    pub fn new(slots: usize, boot_in: usize, boot_out: usize) -> Sim {
        Sim {
            slots,
            boot_in,
            boot_out,
            boot_noise: 0.0,
            rescale_noise: 0.0,
            state: Cell::new(0x5eed),
            used: RefCell::default(),
            exact: None,
        }
    }

    /// With functions in place of the polynomials that approximate them, to tell their share of an error.
    pub fn with_exact(mut self, function: ExactFunction) -> Sim {
        self.exact = Some(function);
        self
    }

    /// Standard deviations of the noise per slot: of a bootstrap (before its gain), and of a rescale.
    pub fn with_noise(mut self, boot: f64, rescale: f64) -> Sim {
        self.boot_noise = boot;
        self.rescale_noise = rescale;
        self
    }

    /// Largest normalised value each polynomial and bootstrap has seen.
    pub fn used(&self) -> Vec<(String, f64)> {
        self.used.borrow().clone()
    }

    /// A vector at a level.
    pub fn input(&self, slots: Vec<Complex>, level: usize) -> SimCt {
        SimCt { slots, level }
    }

    fn uniform(&self) -> f64 {
        let mut s = self.state.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.state.set(s);
        s = (s ^ (s >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        s = (s ^ (s >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((s ^ (s >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    fn noisy(&self, mut ct: SimCt, deviation: f64) -> SimCt {
        if deviation > 0.0 {
            for v in &mut ct.slots {
                let r = (-2.0 * (1.0 - self.uniform()).ln()).sqrt() * deviation;
                let (s, c) = (std::f64::consts::TAU * self.uniform()).sin_cos();
                *v = *v + Complex::new(r * c, r * s);
            }
        }
        ct
    }

    fn down(&self, level: usize) -> Result<usize, HopError> {
        level
            .checked_sub(1)
            .filter(|l| *l >= self.boot_in)
            .ok_or(HopError::Engine(cipherhop_ckks::CkksError::LevelTooLow {
                have: level,
                need: self.boot_in + 1,
            }))
    }

    fn at(&self, v: &[Complex], p: usize) -> Complex {
        v[p % v.len()]
    }

    fn note(&self, what: &str, value: f64) -> Result<(), HopError> {
        self.used.borrow_mut().push((what.to_string(), value));
        if value > EDGE || value.is_nan() {
            return Err(HopError::OutOfInterval {
                what: what.to_string(),
                value,
            });
        }
        Ok(())
    }

    fn zip(&self, a: &SimCt, b: &SimCt, f: impl Fn(Complex, Complex) -> Complex) -> SimCt {
        SimCt {
            slots: a
                .slots
                .iter()
                .zip(&b.slots)
                .map(|(x, y)| f(*x, *y))
                .collect(),
            level: a.level.min(b.level),
        }
    }

    fn map(&self, a: &SimCt, f: impl Fn(usize, Complex) -> Complex) -> SimCt {
        SimCt {
            slots: a.slots.iter().enumerate().map(|(p, x)| f(p, *x)).collect(),
            level: a.level,
        }
    }

    fn turn(&self, a: &[Complex], steps: i64) -> Vec<Complex> {
        let mut out = a.to_vec();
        out.rotate_left(steps.rem_euclid(self.slots as i64) as usize);
        out
    }
}

fn chebyshev(coeffs: &[f64], x: f64) -> f64 {
    let (mut b1, mut b2) = (0.0, 0.0);
    for c in coeffs.iter().skip(1).rev() {
        (b1, b2) = (2.0 * x * b1 - b2 + c, b1);
    }
    coeffs.first().copied().unwrap_or(0.0) + x * b1 - b2
}

impl Backend for Sim {
    type Ct = SimCt;

    fn level(&self, a: &SimCt) -> usize {
        a.level
    }

    fn add(&self, a: &SimCt, b: &SimCt) -> Result<SimCt, HopError> {
        Ok(self.zip(a, b, |x, y| x + y))
    }

    fn sub(&self, a: &SimCt, b: &SimCt) -> Result<SimCt, HopError> {
        Ok(self.zip(a, b, |x, y| x - y))
    }

    fn add_plain(&self, a: &SimCt, v: &[Complex]) -> Result<SimCt, HopError> {
        Ok(self.map(a, |p, x| x + self.at(v, p)))
    }

    fn mul_plain(&self, a: &SimCt, v: &[Complex]) -> Result<SimCt, HopError> {
        let mut out = self.map(a, |p, x| x * self.at(v, p));
        out.level = self.down(a.level)?;
        Ok(self.noisy(out, self.rescale_noise))
    }

    fn mul_int(&self, a: &SimCt, by: i64) -> Result<SimCt, HopError> {
        Ok(self.map(a, |_, x| x.scale(by as f64)))
    }

    fn mul_i(&self, a: &SimCt) -> Result<SimCt, HopError> {
        Ok(self.map(a, |_, x| x * Complex::I))
    }

    fn mul(&self, a: &SimCt, b: &SimCt) -> Result<SimCt, HopError> {
        let mut out = self.zip(a, b, |x, y| x * y);
        out.level = self.down(out.level)?;
        Ok(self.noisy(out, self.rescale_noise))
    }

    fn square(&self, a: &SimCt) -> Result<SimCt, HopError> {
        self.mul(a, a)
    }

    fn rotate(&self, a: &SimCt, steps: i64) -> Result<SimCt, HopError> {
        Ok(SimCt {
            slots: self.turn(&a.slots, steps),
            level: a.level,
        })
    }

    fn rotate_many(&self, a: &SimCt, steps: &[i64]) -> Result<Vec<SimCt>, HopError> {
        steps.iter().map(|s| self.rotate(a, *s)).collect()
    }

    fn conj(&self, a: &SimCt) -> Result<SimCt, HopError> {
        Ok(self.map(a, |_, x| x.conj()))
    }

    fn drop_to(&self, a: &SimCt, level: usize) -> Result<SimCt, HopError> {
        if level > a.level {
            return Err(HopError::Engine(cipherhop_ckks::CkksError::LevelTooLow {
                have: a.level,
                need: level,
            }));
        }
        let mut out = a.clone();
        let lower = level < a.level;
        out.level = level;
        Ok(if lower {
            self.noisy(out, self.rescale_noise)
        } else {
            out
        })
    }

    fn linear(
        &self,
        a: &SimCt,
        map: &LinearSpec,
        weight: &(dyn Fn(usize, usize) -> Complex + Sync),
    ) -> Result<SimCt, HopError> {
        let mut out = vec![Complex::ZERO; self.slots];
        for (r, d) in map.diagonals(weight) {
            let x = self.turn(&a.slots, r);
            for (p, y) in out.iter_mut().enumerate() {
                *y = *y + d[p % map.block] * x[p];
            }
        }
        let out = SimCt {
            slots: out,
            level: self.down(a.level)?,
        };
        Ok(self.noisy(out, self.rescale_noise))
    }

    fn polys(&self, a: &SimCt, polys: &[Poly]) -> Result<Vec<SimCt>, HopError> {
        let largest = a.slots.iter().fold(0.0, |m: f64, v| m.max(v.re.abs()));
        let stray = a.slots.iter().fold(0.0, |m: f64, v| m.max(v.im.abs()));
        let mut out = Vec::with_capacity(polys.len());
        for poly in polys {
            self.note(poly.name, largest)?;
            if stray > 1e-3 {
                self.note("imaginary part of a polynomial argument", 1.0 + stray)?;
            }
            let level = a
                .level
                .checked_sub(poly_depth(&poly.coeffs))
                .filter(|l| *l >= self.boot_in)
                .ok_or(HopError::Engine(cipherhop_ckks::CkksError::LevelTooLow {
                    have: a.level,
                    need: self.boot_in + poly_depth(&poly.coeffs),
                }))?;
            let mut y = self.map(a, |p, x| {
                let m = poly.mask.as_ref().map_or(1.0, |m| m[p % m.len()]);
                let exact = self.exact.as_ref().and_then(|f| f(poly.name, x.re));
                Complex::real(m * exact.unwrap_or_else(|| chebyshev(&poly.coeffs, x.re)))
            });
            y.level = level;
            out.push(self.noisy(y, self.rescale_noise * 8.0));
        }
        Ok(out)
    }

    fn boot_stc(&self, a: &SimCt) -> Result<SimCt, HopError> {
        if a.level != self.boot_in {
            return Err(HopError::Internal(format!(
                "bootstrap at level {}, not {}",
                a.level, self.boot_in
            )));
        }
        Ok(a.clone())
    }

    fn boot_raise(&self, a: &SimCt) -> Result<SimCt, HopError> {
        Ok(a.clone())
    }

    fn boot_cts(&self, a: &SimCt, complex: bool) -> Result<Vec<SimCt>, HopError> {
        let mut out = vec![self.map(a, |_, x| Complex::real(x.re))];
        if complex {
            out.push(self.map(a, |_, x| Complex::real(x.im)));
        }
        Ok(out)
    }

    fn boot_evalmod(&self, a: &SimCt, gain: f64) -> Result<SimCt, HopError> {
        let largest = a.slots.iter().fold(0.0, |m: f64, v| m.max(v.re.abs()));
        self.note("bootstrap", largest)?;
        let noisy = self.noisy(a.clone(), self.boot_noise);
        let mut out = self.map(&noisy, |_, x| Complex::real(x.re * gain));
        out.level = self.boot_out;
        Ok(out)
    }
}
