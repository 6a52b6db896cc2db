//! Weight packs: one layer's public weights as the encrypted circuit wants them.
//!
//! Norm gammas are folded into the matrix that follows, an orthogonal rotation of the residual basis into every matrix that
//! reads or writes the residual (it spreads large channels, CIRCUIT.md section 4), and the public prefix's keys and values
//! travel along. Only + - * / and sqrt are used, so equal models give equal packs on every machine.

use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::model::{LayerWeights, Matrix, ModelConfig, PublicKv, SplitMix64, dots};

const MAGIC: &[u8; 4] = b"CHWP";
const VERSION: u32 = 1;
const HEADER: usize = 4 + 4 + 8 * 4;
const SEED: u64 = 0x726f_7461_7465_0005;

/// A weight pack that must not be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PackError {
    /// Too short, too long or no pack at all.
    #[error("malformed weight pack: {0}")]
    Malformed(&'static str),
    /// Version of a newer program.
    #[error("weight pack version {0} is not known")]
    Version(u32),
    /// The digest at the end does not match.
    #[error("the weight pack is damaged: its digest does not match")]
    Digest,
}

/// Which orthogonal matrix rotates the residual basis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rotation {
    /// None.
    Identity,
    /// Random signs, then Hadamard; widths that are powers of two.
    Hadamard,
    /// Product of random Householder reflectors; any width.
    Reflectors,
}

impl Rotation {
    /// The usual choice for a width.
    pub fn for_width(d: usize) -> Self {
        if d.is_power_of_two() {
            Self::Hadamard
        } else {
            Self::Reflectors
        }
    }
}

/// An orthogonal change of basis `x_rot = x R` of width `d`, ready to use.
#[derive(Clone, Debug)]
pub struct Rotator {
    d: usize,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    Identity,
    Hadamard {
        signs: Vec<f64>,
        scale: f64,
    },
    /// R by rows and by columns.
    Dense {
        rows: Vec<f64>,
        columns: Vec<f64>,
    },
}

impl Rotator {
    /// Builds the matrix; a Hadamard rotation of another width than a power of two is refused.
    pub fn new(rotation: Rotation, d: usize) -> Option<Self> {
        let mut g = SplitMix64::new(SEED);
        let kind = match rotation {
            Rotation::Identity => Kind::Identity,
            Rotation::Hadamard if d.is_power_of_two() => Kind::Hadamard {
                signs: (0..d)
                    .map(|_| if g.next_u64() >> 63 == 0 { 1.0 } else { -1.0 })
                    .collect(),
                scale: 1.0 / (d as f64).sqrt(),
            },
            Rotation::Hadamard => return None,
            Rotation::Reflectors => {
                let rows = reflectors(&mut g, d);
                let columns = (0..d * d).map(|i| rows[i % d * d + i / d]).collect();
                Kind::Dense { rows, columns }
            }
        };
        Some(Self { d, kind })
    }

    /// Rotates vectors of `d` stored one after another.
    pub fn rotate(&self, x: &[f64]) -> Vec<f64> {
        self.map(x, false)
    }

    /// Undoes [`Self::rotate`].
    pub fn unrotate(&self, x: &[f64]) -> Vec<f64> {
        self.map(x, true)
    }

    fn map(&self, x: &[f64], back: bool) -> Vec<f64> {
        let mut out = vec![0.0; x.len() / self.d * self.d];
        // Tiles of rows in parallel; every value has its own fixed order of sums.
        out.par_chunks_mut(TILE * self.d)
            .zip(x.par_chunks(TILE * self.d))
            .for_each(|(out, x)| match &self.kind {
                Kind::Identity => out.copy_from_slice(&x[..out.len()]),
                Kind::Hadamard { signs, scale } => {
                    for (v, row) in out.chunks_exact_mut(self.d).zip(x.chunks_exact(self.d)) {
                        v.copy_from_slice(row);
                        let flip =
                            |v: &mut [f64]| v.iter_mut().zip(signs).for_each(|(a, s)| *a *= s);
                        if !back {
                            flip(v);
                        }
                        hadamard(v);
                        v.iter_mut().for_each(|a| *a *= scale);
                        if back {
                            flip(v);
                        }
                    }
                }
                Kind::Dense { rows, columns } => {
                    multiply(if back { rows } else { columns }, self.d, x, out);
                }
            });
        out
    }
}

/// Vectors per tile.
const TILE: usize = 32;

/// `out[v][j]` = inner product of vector `v` of `x` with row `j` of `m`.
fn multiply(m: &[f64], d: usize, x: &[f64], out: &mut [f64]) {
    for (j, row) in m.chunks_exact(d).enumerate() {
        let quads = x.chunks_exact(4 * d);
        let rest = quads.remainder();
        let mut slots = out.iter_mut().skip(j).step_by(d);
        for quad in quads {
            for (value, slot) in dots::<4, f64>(row, quad).into_iter().zip(slots.by_ref()) {
                *slot = value;
            }
        }
        for (one, slot) in rest.chunks_exact(d).zip(slots) {
            *slot = dots::<1, f64>(row, one)[0];
        }
    }
}

/// Unnormalised Walsh-Hadamard transform in place.
fn hadamard(v: &mut [f64]) {
    let mut half = 1;
    while half < v.len() {
        for block in v.chunks_exact_mut(2 * half) {
            let (a, b) = block.split_at_mut(half);
            for (x, y) in a.iter_mut().zip(b) {
                (*x, *y) = (*x + *y, *x - *y);
            }
        }
        half *= 2;
    }
}

/// H_1 H_2 ... with reflector k acting on coordinates k.. (Stewart, "The efficient generation of random orthogonal
/// matrices", 1980).
fn reflectors(g: &mut SplitMix64, d: usize) -> Vec<f64> {
    let mut r = vec![0.0; d * d];
    (0..d).for_each(|i| r[i * d + i] = 1.0);
    for k in 0..d.saturating_sub(1) {
        let mut v: Vec<f64> = (k..d).map(|_| g.normal()).collect();
        // The reflector that sends axis k to a random direction.
        let length = v.iter().map(|a| a * a).sum::<f64>().sqrt();
        v[0] += if v[0] < 0.0 { -length } else { length };
        let norm: f64 = v.iter().map(|a| a * a).sum();
        for row in r.chunks_exact_mut(d) {
            let tail = &mut row[k..];
            let factor = 2.0 * tail.iter().zip(&v).map(|(a, b)| a * b).sum::<f64>() / norm;
            tail.iter_mut().zip(&v).for_each(|(a, b)| *a -= factor * b);
        }
    }
    r
}

/// One layer's folded weights. Matrices are outputs x inputs; residual-side indices are in the rotated basis.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerPack {
    /// Layer index.
    pub layer: usize,
    /// Query matrix, gamma and rotation folded in: `heads * head_dim` x `d`.
    pub q: Matrix,
    /// Key matrix, likewise: `kv_heads * head_dim` x `d`.
    pub k: Matrix,
    /// Value matrix, likewise: `kv_heads * head_dim` x `d`.
    pub v: Matrix,
    /// Output matrix, rotation folded in: `d` x `heads * head_dim`.
    pub o: Matrix,
    /// Gate matrix, gamma and rotation folded in: `mlp` x `d`.
    pub gate: Matrix,
    /// Up matrix, likewise: `mlp` x `d`.
    pub up: Matrix,
    /// Down matrix, rotation folded in: `d` x `mlp`.
    pub down: Matrix,
    /// Width of one head.
    pub head_dim: usize,
    /// Gamma of the per-head query norm (Qwen3), `head_dim`; not folded.
    pub q_gamma: Option<Vec<f32>>,
    /// Gamma of the per-head key norm (Qwen3), `head_dim`; not folded.
    pub k_gamma: Option<Vec<f32>>,
    /// Public tokens.
    pub public: usize,
    /// Keys of the public tokens, norm and RoPE applied: `[token][kv_head][head_dim]`.
    pub public_k: Vec<f32>,
    /// Values of the public tokens: `[token][kv_head][head_dim]`.
    pub public_v: Vec<f32>,
}

fn rotate_rows(m: &Matrix, gamma: Option<&[f32]>, r: &Rotator) -> Matrix {
    let wide: Vec<f64> = match gamma {
        Some(g) => (0..m.data.len())
            .map(|i| f64::from(m.data[i]) * f64::from(g[i % m.cols]))
            .collect(),
        None => m.data.iter().map(|w| f64::from(*w)).collect(),
    };
    let data = r.rotate(&wide).into_iter().map(|v| v as f32).collect();
    Matrix {
        rows: m.rows,
        cols: m.cols,
        data,
    }
}

fn transposed(m: &Matrix) -> Matrix {
    let data = (0..m.cols)
        .flat_map(|c| (0..m.rows).map(move |r| m.data[r * m.cols + c]))
        .collect();
    Matrix {
        rows: m.cols,
        cols: m.rows,
        data,
    }
}

impl LayerPack {
    /// Folds gammas and rotation.
    pub fn fold(
        cfg: &ModelConfig,
        layer: usize,
        w: &LayerWeights,
        public: &PublicKv,
        rotator: &Rotator,
    ) -> Self {
        let reads = |m: &Matrix, gamma: &[f32]| rotate_rows(m, Some(gamma), rotator);
        let writes = |m: &Matrix| transposed(&rotate_rows(&transposed(m), None, rotator));
        let narrow = |v: &[f64]| v.iter().map(|x| *x as f32).collect();
        Self {
            layer,
            q: reads(&w.q, &w.attn_norm),
            k: reads(&w.k, &w.attn_norm),
            v: reads(&w.v, &w.attn_norm),
            o: writes(&w.o),
            gate: reads(&w.gate, &w.ffn_norm),
            up: reads(&w.up, &w.ffn_norm),
            down: writes(&w.down),
            head_dim: cfg.head_dim,
            q_gamma: w.q_norm.clone(),
            k_gamma: w.k_norm.clone(),
            public: public.tokens,
            public_k: narrow(&public.k),
            public_v: narrow(&public.v),
        }
    }

    /// Binary form: header, f32 little-endian values, SHA-256 of all of it.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(MAGIC);
        let qk = u32::from(self.q_gamma.is_some());
        let sizes = [self.layer, self.q.cols, self.q.rows, self.k.rows].map(|v| v as u32);
        out.extend(VERSION.to_le_bytes());
        for v in sizes.into_iter().chain([
            self.head_dim as u32,
            self.gate.rows as u32,
            self.public as u32,
            qk,
        ]) {
            out.extend(v.to_le_bytes());
        }
        for m in [
            &self.q, &self.k, &self.v, &self.o, &self.gate, &self.up, &self.down,
        ] {
            out.extend(m.data.iter().flat_map(|v| v.to_le_bytes()));
        }
        let vectors = [
            self.q_gamma.as_ref(),
            self.k_gamma.as_ref(),
            Some(&self.public_k),
            Some(&self.public_v),
        ];
        for v in vectors.into_iter().flatten() {
            out.extend(v.iter().flat_map(|v| v.to_le_bytes()));
        }
        let digest = Sha256::digest(&out);
        out.extend(digest);
        out
    }

    /// Reads a pack and checks it against the model's shape.
    pub fn parse(bytes: &[u8], cfg: &ModelConfig) -> Result<Self, PackError> {
        if bytes.len() < HEADER + 32 || &bytes[..4] != MAGIC {
            return Err(PackError::Malformed("no weight pack"));
        }
        let word = |i: usize| {
            u32::from_le_bytes([bytes[i], bytes[i + 1], bytes[i + 2], bytes[i + 3]]) as usize
        };
        if word(4) != VERSION as usize {
            return Err(PackError::Version(word(4) as u32));
        }
        let [layer, d, q, kv, head_dim, mlp, public, qk] =
            [0, 1, 2, 3, 4, 5, 6, 7].map(|i| word(8 + 4 * i));
        let gamma_len = if cfg.qk_norm() { cfg.head_dim } else { 0 };
        if [d, q, kv, head_dim, mlp, qk]
            != [
                cfg.d,
                cfg.q_width(),
                cfg.kv_width(),
                cfg.head_dim,
                cfg.mlp,
                usize::from(cfg.qk_norm()),
            ]
            || layer >= cfg.layers
        {
            return Err(PackError::Malformed("another model's shape"));
        }
        let weights = d * (2 * q + 2 * kv + 3 * mlp) + 2 * gamma_len;
        let expected = public
            .checked_mul(2 * kv)
            .and_then(|n| n.checked_add(weights))
            .and_then(|n| n.checked_mul(4))
            .and_then(|n| n.checked_add(HEADER + 32));
        if expected != Some(bytes.len()) {
            return Err(PackError::Malformed("length"));
        }
        let (body, digest) = bytes.split_at(bytes.len() - 32);
        if Sha256::digest(body)[..] != *digest {
            return Err(PackError::Digest);
        }
        let mut values = body[HEADER..]
            .chunks_exact(4)
            .map(|c| f32::from_le_bytes([c[0], c[1], c[2], c[3]]));
        if values.clone().any(|v| !v.is_finite()) {
            return Err(PackError::Malformed("a value is not finite"));
        }
        let mut take = |n: usize| values.by_ref().take(n).collect::<Vec<f32>>();
        let mut matrix = |rows: usize, cols: usize| Matrix {
            rows,
            cols,
            data: take(rows * cols),
        };
        let (wq, wk, wv, wo) = (matrix(q, d), matrix(kv, d), matrix(kv, d), matrix(d, q));
        let (gate, up, down) = (matrix(mlp, d), matrix(mlp, d), matrix(d, mlp));
        let mut gamma = || (qk == 1).then(|| take(gamma_len));
        let (q_gamma, k_gamma) = (gamma(), gamma());
        let (public_k, public_v) = (take(public * kv), take(public * kv));
        Ok(Self {
            layer,
            q: wq,
            k: wk,
            v: wv,
            o: wo,
            gate,
            up,
            down,
            head_dim,
            q_gamma,
            k_gamma,
            public,
            public_k,
            public_v,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Model, PublicPrefix};

    #[test]
    fn rotations_are_orthogonal_and_spread_a_single_channel() {
        for (kind, d) in [
            (Rotation::Hadamard, 64),
            (Rotation::Reflectors, 72),
            (Rotation::Identity, 5),
        ] {
            let r = Rotator::new(kind, d).unwrap();
            let x: Vec<f64> = (0..2 * d).map(|i| ((i * 37 % 101) as f64) - 50.0).collect();
            let y = r.rotate(&x);
            for (a, b) in r.unrotate(&y).iter().zip(&x) {
                assert!((a - b).abs() < 1e-10);
            }
            let dot = |v: &[f64]| v[..d].iter().zip(&v[d..]).map(|(a, b)| a * b).sum::<f64>();
            assert!((dot(&x) - dot(&y)).abs() < 1e-8);
            let mut single = vec![0.0; d];
            single[3] = 1.0;
            let peak = r.rotate(&single).iter().fold(0.0f64, |m, v| m.max(v.abs()));
            assert!(kind == Rotation::Identity || peak < 0.6, "{kind:?} {peak}");
        }
        assert!(Rotator::new(Rotation::Hadamard, 72).is_none());
        assert_eq!(
            (Rotation::for_width(2048), Rotation::for_width(576)),
            (Rotation::Hadamard, Rotation::Reflectors)
        );
    }

    #[test]
    fn a_folded_layer_computes_the_same_and_its_pack_is_strict() {
        for name in crate::model::TINY_NAMES {
            let model = Model::open(name).unwrap();
            let cfg = &model.config;
            let rotator = Rotator::new(Rotation::for_width(cfg.d), cfg.d).unwrap();
            let mut prefix = PublicPrefix::new(&model, &model.default_prefix().unwrap()).unwrap();
            let w = model.layer(0).unwrap();
            let kv = prefix.step(cfg, &w);
            let pack = LayerPack::fold(cfg, 0, &w, &kv, &rotator);
            let x: Vec<f64> = (0..cfg.d).map(|i| (i as f64 * 0.7).sin()).collect();
            let scaled: Vec<f64> = x
                .iter()
                .zip(&w.attn_norm)
                .map(|(a, g)| a * f64::from(*g))
                .collect();
            for (a, b) in pack
                .q
                .apply(&rotator.rotate(&x), 1)
                .iter()
                .zip(w.q.apply(&scaled, 1))
            {
                assert!((a - b).abs() < 1e-5);
            }
            let m: Vec<f64> = (0..cfg.mlp).map(|i| (i as f64 * 0.3).cos()).collect();
            for (a, b) in rotator
                .unrotate(&pack.down.apply(&m, 1))
                .iter()
                .zip(w.down.apply(&m, 1))
            {
                assert!((a - b).abs() < 1e-5);
            }
            let bytes = pack.to_bytes();
            assert_eq!(LayerPack::parse(&bytes, cfg).unwrap(), pack);
            assert_eq!(
                LayerPack::parse(&bytes[..bytes.len() - 4], cfg),
                Err(PackError::Malformed("length"))
            );
            for at in [0, 9, 40, 4000, bytes.len() - 1] {
                let mut bad = bytes.clone();
                bad[at] ^= 1;
                assert!(LayerPack::parse(&bad, cfg).is_err(), "byte {at}");
            }
        }
    }
}
