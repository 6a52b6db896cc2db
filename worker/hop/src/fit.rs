//! Chebyshev interpolants for the calibration. Key holder's side only: it uses the system's `cos` and `powf`.

use crate::{
    calib::{ChebApprox, Interval},
    calibrate::CalibrateError,
};

/// Fits for one layer.
pub(crate) struct Fit {
    /// Layer, for error messages.
    pub layer: usize,
}

const DEGREES: [usize; 6] = [15, 31, 63, 127, 255, 511];
const GRID: usize = 4000;

impl Fit {
    /// Interpolation at the Chebyshev nodes, smallest degree 2^k - 1 within the tolerance (or the given degree).
    fn choose(
        &self,
        what: &'static str,
        f: impl Fn(f64) -> f64,
        i: Interval,
        tolerance: f64,
        degree: Option<usize>,
        error: impl Fn(&ChebApprox) -> f64,
    ) -> Result<ChebApprox, CalibrateError> {
        let degrees = degree.map_or(DEGREES.to_vec(), |d| vec![d]);
        for d in degrees {
            let mut poly = ChebApprox {
                degree: d,
                lo: i.lo,
                hi: i.hi,
                coeffs: interpolate(&f, i, d),
                max_err: 0.0,
            };
            poly.max_err = error(&poly);
            if poly.max_err <= tolerance || degree.is_some() {
                return Ok(poly);
            }
        }
        Err(CalibrateError::Degree {
            layer: self.layer,
            what,
            degree: DEGREES[DEGREES.len() - 1],
            lo: i.lo,
            hi: i.hi,
            tolerance,
        })
    }

    /// x^-1/2 on a positive interval, by relative error.
    pub fn inverse_root(
        &self,
        what: &'static str,
        i: Interval,
        tolerance: f64,
    ) -> Result<ChebApprox, CalibrateError> {
        let f = |x: f64| x.sqrt().recip();
        self.choose(what, f, i, tolerance, None, |p| {
            let at = |k: usize| i.lo * (i.hi / i.lo).powf(k as f64 / GRID as f64);
            (0..=GRID)
                .map(|k| (p.eval(at(k)) / f(at(k)) - 1.0).abs())
                .fold(0.0, f64::max)
        })
    }

    /// `f` on [-b, b], by absolute error.
    pub fn symmetric(
        &self,
        what: &'static str,
        f: impl Fn(f64) -> f64,
        b: f64,
        tolerance: f64,
        degree: Option<usize>,
    ) -> Result<ChebApprox, CalibrateError> {
        let i = Interval { lo: -b, hi: b };
        self.choose(what, &f, i, tolerance, degree, |p| {
            let at = |k: usize| b * (2.0 * k as f64 / GRID as f64 - 1.0);
            (0..=GRID)
                .map(|k| (p.eval(at(k)) - f(at(k))).abs())
                .fold(0.0, f64::max)
        })
    }
}

fn interpolate(f: impl Fn(f64) -> f64, i: Interval, degree: usize) -> Vec<f64> {
    let n = degree + 1;
    let angle = |k: usize| std::f64::consts::PI * (k as f64 + 0.5) / n as f64;
    let values: Vec<f64> = (0..n)
        .map(|k| f((angle(k).cos() * (i.hi - i.lo) + i.hi + i.lo) / 2.0))
        .collect();
    (0..n)
        .map(|j| {
            let sum: f64 = values
                .iter()
                .enumerate()
                .map(|(k, v)| v * (j as f64 * angle(k)).cos())
                .sum();
            sum * if j == 0 { 1.0 } else { 2.0 } / n as f64
        })
        .collect()
}
