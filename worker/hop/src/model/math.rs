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
        let mut y = vec![0.0; n * self.rows];
        if n < 2 * TILE {
            // Few vectors: split the rows between threads.
            let mut by_row = vec![0.0; self.rows * n];
            by_row
                .par_chunks_mut(n.max(1))
                .enumerate()
                .for_each(|(r, out)| self.row_times(r, x, out, 1));
            for (r, values) in by_row.chunks_exact(n.max(1)).enumerate() {
                for (t, v) in values.iter().enumerate() {
                    y[t * self.rows + r] = *v;
                }
            }
            return y;
        }
        // Many vectors: a tile of them stays in the cache while all rows pass by.
        y.par_chunks_mut(TILE * self.rows)
            .zip(x.par_chunks(TILE * self.cols))
            .for_each(|(y, x)| {
                (0..self.rows).for_each(|r| self.row_times(r, x, &mut y[r..], self.rows))
            });
        y
    }

    /// Row `r` times every vector of `x`, results `stride` apart.
    fn row_times(&self, r: usize, x: &[f64], out: &mut [f64], stride: usize) {
        let row = self.row(r);
        let mut results = out.iter_mut().step_by(stride);
        let quads = x.chunks_exact(4 * self.cols);
        let rest = quads.remainder();
        for quad in quads {
            for (value, slot) in dots::<4, f32>(row, quad).into_iter().zip(results.by_ref()) {
                *slot = value;
            }
        }
        for (one, slot) in rest.chunks_exact(self.cols).zip(results) {
            *slot = dots::<1, f32>(row, one)[0];
        }
    }
}

/// Vectors per tile.
const TILE: usize = 32;

/// One row times `N` vectors, four interleaved partial sums each; the same bits for every `N`.
pub(crate) fn dots<const N: usize, W: Copy + Into<f64>>(w: &[W], x: &[f64]) -> [f64; N] {
    let n = w.len();
    let vectors: [&[f64]; N] = std::array::from_fn(|v| &x[v * n..(v + 1) * n]);
    let mut acc = [[0.0f64; 4]; N];
    let whole = n - n % 4;
    for i in (0..whole).step_by(4) {
        let w: [f64; 4] = std::array::from_fn(|k| w[i + k].into());
        for (acc, x) in acc.iter_mut().zip(vectors) {
            let x = &x[i..i + 4];
            for k in 0..4 {
                acc[k] += w[k] * x[k];
            }
        }
    }
    let mut out = acc.map(|s| (s[0] + s[2]) + (s[1] + s[3]));
    for i in whole..n {
        for (o, x) in out.iter_mut().zip(vectors) {
            *o += w[i].into() * x[i];
        }
    }
    out
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
