//! Dense matrices in f32 and the few plain operations of a decoder layer, in f64.

use rayon::prelude::*;

/// Row-major matrix, rows = outputs, columns = inputs.
#[derive(Clone, Debug, PartialEq)]
pub struct Matrix {
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// `rows * cols` values.
    pub data: Vec<f32>,
}

impl Matrix {
    /// One row.
    pub fn row(&self, index: usize) -> &[f32] {
        &self.data[index * self.cols..(index + 1) * self.cols]
    }

    /// `y = W x` for `n` vectors stored one after another (`n x cols` in, `n x rows` out). Sums run in a fixed order,
    /// whatever the thread count.
    pub fn apply(&self, x: &[f64], n: usize) -> Vec<f64> {
        assert_eq!(x.len(), n * self.cols, "vectors do not fit the matrix");
        let mut by_row = vec![0.0; self.rows * n];
        by_row.par_chunks_mut(n.max(1)).enumerate().for_each_init(
            Vec::new,
            |wide: &mut Vec<f64>, (r, out)| {
                wide.clear();
                wide.extend(self.row(r).iter().map(|w| f64::from(*w)));
                for (y, x) in out.iter_mut().zip(x.chunks_exact(self.cols)) {
                    *y = dot(wide, x);
                }
            },
        );
        let mut y = vec![0.0; n * self.rows];
        y.par_chunks_mut(self.rows)
            .enumerate()
            .for_each(|(t, out)| {
                for (r, v) in out.iter_mut().enumerate() {
                    *v = by_row[r * n + t];
                }
            });
        y
    }
}

/// Inner product in eight interleaved partial sums.
pub(crate) fn dot(a: &[f64], b: &[f64]) -> f64 {
    let mut acc = [0.0; 8];
    let (ca, cb) = (a.chunks_exact(8), b.chunks_exact(8));
    let tail: f64 = ca
        .remainder()
        .iter()
        .zip(cb.remainder())
        .map(|(x, y)| x * y)
        .sum();
    for (x, y) in ca.zip(cb) {
        for k in 0..8 {
            acc[k] += x[k] * y[k];
        }
    }
    ((acc[0] + acc[4]) + (acc[1] + acc[5])) + ((acc[2] + acc[6]) + (acc[3] + acc[7])) + tail
}

/// Mean square of a vector.
pub(crate) fn mean_square(x: &[f64]) -> f64 {
    dot(x, x) / x.len() as f64
}

/// Cosines and sines of RoPE for positions `first..first + count`: `head_dim / 2` values per position.
pub fn rope_tables(
    theta: f64,
    head_dim: usize,
    first: usize,
    count: usize,
) -> (Vec<Vec<f64>>, Vec<Vec<f64>>) {
    let rows = |f: fn(f64) -> f64| {
        (first..first + count)
            .map(|p| {
                (0..head_dim / 2)
                    .map(|i| f(p as f64 * theta.powf(-2.0 * i as f64 / head_dim as f64)))
                    .collect()
            })
            .collect()
    };
    (rows(f64::cos), rows(f64::sin))
}
