//! A random decoder layer, its plain forward pass, and a calibration made from that pass alone.
#![allow(dead_code, clippy::unwrap_used, missing_docs)]

use cipherhop_hop::layout::{Layout, Shape};
use cipherhop_hop::plan::{Approx, LayerPlan, Levels, place_refreshes};
use cipherhop_hop::tensors::{PackedLayer, Rope};

pub const FLOOR: usize = 3;
pub const TOP: usize = 18;

pub struct Rng(pub u64);

impl Rng {
    pub fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut s = self.0;
        s = (s ^ (s >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        s = (s ^ (s >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((s ^ (s >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    pub fn normal(&mut self) -> f64 {
        (-2.0 * (1.0 - self.unit()).ln()).sqrt() * (std::f64::consts::TAU * self.unit()).cos()
    }

    pub fn normals(&mut self, n: usize, deviation: f64) -> Vec<f64> {
        (0..n).map(|_| self.normal() * deviation).collect()
    }

    fn matrix(&mut self, rows: usize, cols: usize, scale: f64) -> Vec<f32> {
        let s = scale / (cols as f64).sqrt();
        (0..rows * cols)
            .map(|_| (self.normal() * s) as f32)
            .collect()
    }
}

/// A layer with its public tokens and one prompt.
pub struct Case {
    pub layout: Layout,
    pub weights: PackedLayer,
    pub rope: Rope,
    pub plan: LayerPlan,
    pub levels: Levels,
    pub f: f64,
    pub eps: f64,
    pub x: Vec<f64>,
    pub y: Vec<f64>,
}

pub struct Options {
    pub shape: Shape,
    pub slots: usize,
    pub tokens: usize,
    pub prefix: usize,
    pub interleaved: bool,
    pub score_degree: usize,
    pub norm_degree: usize,
}

pub fn tiny(qk_norm: bool) -> Options {
    Options {
        shape: Shape {
            d: 64,
            heads: 4,
            kv_heads: 2,
            head_dim: 16,
            mlp: 192,
            qk_norm,
        },
        slots: 1024,
        tokens: 3,
        prefix: 2,
        interleaved: !qk_norm,
        score_degree: 127,
        norm_degree: 31,
    }
}

pub fn smol(slots: usize, tokens: usize) -> Options {
    Options {
        shape: Shape {
            d: 576,
            heads: 9,
            kv_heads: 3,
            head_dim: 64,
            mlp: 1536,
            qk_norm: false,
        },
        slots,
        tokens,
        prefix: 2,
        interleaved: true,
        score_degree: 127,
        norm_degree: 31,
    }
}

pub fn qwen3_2b() -> Options {
    Options {
        shape: Shape {
            d: 2048,
            heads: 16,
            kv_heads: 8,
            head_dim: 128,
            mlp: 6144,
            qk_norm: true,
        },
        slots: 32768,
        tokens: 4,
        prefix: 2,
        interleaved: false,
        score_degree: 127,
        norm_degree: 31,
    }
}

pub fn chebyshev(f: impl Fn(f64) -> f64, lo: f64, hi: f64, degree: usize) -> Vec<f64> {
    let n = degree + 1;
    let node = |k: usize| std::f64::consts::PI * (k as f64 + 0.5) / n as f64;
    let y: Vec<f64> = (0..n)
        .map(|k| f((node(k).cos() * (hi - lo) + lo + hi) / 2.0))
        .collect();
    (0..n)
        .map(|j| {
            let s: f64 = (0..n).map(|k| y[k] * (j as f64 * node(k)).cos()).sum();
            s * if j == 0 { 1.0 } else { 2.0 } / n as f64
        })
        .collect()
}

fn mat(w: &[f32], x: &[f64]) -> Vec<f64> {
    w.chunks_exact(x.len())
        .map(|r| r.iter().zip(x).map(|(a, b)| f64::from(*a) * b).sum())
        .collect()
}

fn mean_square(x: &[f64]) -> f64 {
    x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64
}

fn max_abs(x: &[f64]) -> f64 {
    x.iter().fold(0.0, |m: f64, v| m.max(v.abs()))
}

pub fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// What the plain pass saw.
#[derive(Default)]
pub struct Seen {
    pub ms1: Vec<f64>,
    pub ms2: Vec<f64>,
    pub mq: Vec<f64>,
    pub mk: Vec<f64>,
    pub raw: f64,
    pub raw_public: f64,
    pub score: f64,
    pub o: f64,
    pub gate: Vec<f64>,
    pub up: f64,
    pub down: f64,
}

pub fn rope_tables(
    head_dim: usize,
    first: usize,
    tokens: usize,
    theta: f64,
    interleaved: bool,
) -> Rope {
    let (mut cos, mut sin) = (Vec::new(), Vec::new());
    for t in 0..tokens {
        for i in 0..head_dim / 2 {
            let a = (first + t) as f64 / theta.powf(2.0 * i as f64 / head_dim as f64);
            cos.push(a.cos());
            sin.push(a.sin());
        }
    }
    Rope {
        cos,
        sin,
        interleaved,
    }
}

/// One layer in f64 with public keys and values in front; `x` holds the private tokens.
pub fn plain_layer(
    lay: &Layout,
    w: &PackedLayer,
    rope: &Rope,
    eps: f64,
    x: &[f64],
) -> (Vec<f64>, Seen) {
    let (d, hd, heads, kv) = (lay.d, lay.head_dim, lay.heads, lay.kv_heads);
    let mut seen = Seen::default();
    let norm = |v: &[f64], seen: &mut Vec<f64>| {
        let m = mean_square(v) + eps;
        seen.push(m);
        v.iter().map(|a| a / m.sqrt()).collect::<Vec<_>>()
    };
    let turn = |v: &mut [f64], t: usize| {
        for head in v.chunks_exact_mut(hd) {
            let old = head.to_vec();
            let dist = rope.distance(hd);
            for i in 0..hd {
                let (pair, second) = rope.pair(hd, i);
                let (c, s) = (rope.cos[t * hd / 2 + pair], rope.sin[t * hd / 2 + pair]);
                head[i] = if second {
                    old[i] * c + old[i - dist] * s
                } else {
                    old[i] * c - old[i + dist] * s
                };
            }
        }
    };
    let (mut q, mut k, mut v, mut fq, mut fk) = (vec![], vec![], vec![], vec![], vec![]);
    for (t, row) in x.chunks_exact(d).enumerate() {
        let h = norm(row, &mut seen.ms1);
        let (mut qt, mut kt, vt) = (mat(&w.q, &h), mat(&w.k, &h), mat(&w.v, &h));
        if lay.qk_norm {
            for (z, gain, ms, f) in [
                (&mut qt, &w.q_gain, &mut seen.mq, &mut fq),
                (&mut kt, &w.k_gain, &mut seen.mk, &mut fk),
            ] {
                for head in z.chunks_exact_mut(hd) {
                    let m = mean_square(head) + eps;
                    ms.push(m);
                    f.push(m.sqrt());
                    head.iter_mut()
                        .zip(gain)
                        .for_each(|(a, g)| *a *= f64::from(*g) / m.sqrt());
                }
            }
        }
        turn(&mut qt, t);
        turn(&mut kt, t);
        q.push(qt);
        k.push(kt);
        v.push(vt);
    }
    let public = |kvs: &[f32], j: usize, g: usize| -> Vec<f64> {
        kvs[(j * kv + g) * hd..][..hd]
            .iter()
            .map(|a| f64::from(*a))
            .collect()
    };
    let mut y = Vec::new();
    for (t, row) in x.chunks_exact(d).enumerate() {
        let mut mixed = Vec::new();
        for h in 0..heads {
            let g = lay.kv_of(h);
            let mut keys: Vec<(Vec<f64>, Vec<f64>, f64)> = (0..lay.prefix)
                .map(|j| (public(&w.pub_k, j, g), public(&w.pub_v, j, g), 1.0))
                .collect();
            for delta in 0..=t {
                let s = t - delta;
                let part = |z: &Vec<f64>| z[g * hd..][..hd].to_vec();
                keys.push((
                    part(&k[s]),
                    part(&v[s]),
                    fk.get(s * kv + g).copied().unwrap_or(1.0),
                ));
            }
            let query = &q[t][h * hd..][..hd];
            let s: Vec<f64> = keys
                .iter()
                .map(|(key, _, _)| {
                    key.iter().zip(query).map(|(a, b)| a * b).sum::<f64>() / (hd as f64).sqrt()
                })
                .collect();
            let f = fq.get(t * heads + h).copied().unwrap_or(1.0);
            for (j, (s, (_, _, fk))) in s.iter().zip(&keys).enumerate() {
                let raw = if j < lay.prefix {
                    &mut seen.raw_public
                } else {
                    &mut seen.raw
                };
                *raw = raw.max((s * f * fk).abs());
            }
            let base = if lay.qk_norm { 0.0 } else { s[0] };
            let mut nodes: Vec<f64> = s.iter().map(|z| z - base).collect();
            nodes.resize(lay.leaf_lanes(), f64::NEG_INFINITY);
            while nodes.len() > 1 {
                let half = nodes.len() / 2;
                for i in 0..half {
                    let (a, b) = (nodes[i], nodes[i + half]);
                    seen.score = seen.score.max(if a.is_finite() { a.abs() } else { 0.0 });
                    if b.is_finite() {
                        seen.score = seen.score.max(b.abs()).max((b - a).abs());
                        nodes[i] = a + softplus(b - a);
                    }
                }
                nodes.truncate(half);
            }
            seen.score = seen.score.max(nodes[0].abs());
            let top = s.iter().copied().fold(f64::MIN, f64::max);
            let total: f64 = s.iter().map(|z| (z - top).exp()).sum();
            let mut o = vec![0.0; hd];
            for (z, (_, value, _)) in s.iter().zip(&keys) {
                let p = (z - top).exp() / total;
                o.iter_mut().zip(value).for_each(|(a, b)| *a += p * b);
            }
            mixed.extend(o);
        }
        let o = mat(&w.o, &mixed);
        seen.o = seen.o.max(max_abs(&o));
        let x1: Vec<f64> = row.iter().zip(&o).map(|(a, b)| a + b).collect();
        let h = norm(&x1, &mut seen.ms2);
        let (gate, up) = (mat(&w.gate, &h), mat(&w.up, &h));
        seen.up = seen.up.max(max_abs(&up));
        seen.gate.extend(&gate);
        let act: Vec<f64> = gate.iter().zip(&up).map(|(g, u)| silu(*g) * u).collect();
        let down = mat(&w.down, &act);
        seen.down = seen.down.max(max_abs(&down));
        y.extend(x1.iter().zip(&down).map(|(a, b)| a + b));
    }
    (y, seen)
}

fn range(v: &[f64]) -> (f64, f64) {
    v.iter()
        .fold((f64::MAX, f64::MIN), |(a, b), x| (a.min(*x), b.max(*x)))
}

fn inverse_root(values: &[f64], degree: usize) -> Approx {
    let (lo, hi) = range(values);
    let (lo, hi) = (lo / 1.6, hi * 1.6);
    Approx {
        lo,
        hi,
        coeffs: chebyshev(|x| 1.0 / x.sqrt(), lo, hi, degree),
    }
}

/// Weights of ordinary size (oracle/slots.py), one random prompt, bounds with a margin of 1.4.
pub fn case(o: &Options, seed: u64) -> Case {
    let mut rng = Rng(seed);
    let layout = Layout::new(o.shape, o.slots, o.tokens, o.prefix).unwrap();
    let s = o.shape;
    let (d, kv) = (s.d, s.kv_heads * s.head_dim);
    let gains = |rng: &mut Rng| -> Vec<f32> {
        if s.qk_norm {
            (0..s.head_dim)
                .map(|_| (1.0 + 0.2 * rng.normal()) as f32)
                .collect()
        } else {
            vec![]
        }
    };
    let weights = PackedLayer {
        q: rng.matrix(d, d, 1.0),
        k: rng.matrix(kv, d, 1.0),
        v: rng.matrix(kv, d, 1.0),
        o: rng.matrix(d, d, 0.7),
        gate: rng.matrix(s.mlp, d, 2.0),
        up: rng.matrix(s.mlp, d, 1.3),
        down: rng.matrix(d, s.mlp, 0.9),
        q_gain: gains(&mut rng),
        k_gain: gains(&mut rng),
        pub_k: rng
            .normals(o.prefix * kv, 1.0)
            .iter()
            .map(|v| *v as f32)
            .collect(),
        pub_v: rng
            .normals(o.prefix * kv, 1.0)
            .iter()
            .map(|v| *v as f32)
            .collect(),
    };
    let rope = rope_tables(s.head_dim, o.prefix, o.tokens, 1e4, o.interleaved);
    let eps = 1e-5;
    let x = rng.normals(o.tokens * d, 3.0);
    let (y, seen) = plain_layer(&layout, &weights, &rope, eps, &x);
    let margin = 1.4;
    let f = (max_abs(&y) * margin / 0.4).log2().ceil().exp2();
    let score = (seen.score * margin).max(8.0);
    let (lo, hi) = range(&seen.gate);
    let (lo, hi) = (lo * margin, hi * margin);
    let norms = [
        inverse_root(&seen.ms1, o.norm_degree),
        inverse_root(&seen.ms2, o.norm_degree),
    ];
    let lift = |a: &Approx| (f / a.hi.sqrt()).log2().floor().exp2().max(1.0) as u64;
    let mut plan = LayerPlan {
        lift: [lift(&norms[0]), lift(&norms[1])],
        norms,
        qk: s
            .qk_norm
            .then(|| [inverse_root(&seen.mq, 31), inverse_root(&seen.mk, 31)]),
        raw_private: seen.raw * margin,
        raw_public: seen.raw_public * margin,
        score,
        sigmoid: chebyshev(
            |u| 1.0 / (1.0 + (-u * score).exp()),
            -1.0,
            1.0,
            o.score_degree,
        ),
        softplus: chebyshev(|u| softplus(u * score) / score, -1.0, 1.0, o.score_degree),
        silu: Approx {
            lo,
            hi,
            coeffs: chebyshev(silu, lo, hi, 63),
        },
        o: seen.o * margin,
        up: seen.up * margin,
        down: seen.down * margin,
        refresh: vec![],
    };
    let layout = layout.for_plan(&plan, FLOOR, TOP);
    let levels = Levels::count(0, &layout, &plan, FLOOR, TOP).unwrap();
    plan.refresh = place_refreshes(0, &layout, &plan, &levels).unwrap();
    Case {
        layout,
        weights,
        rope,
        plan,
        levels,
        f,
        eps,
        x,
        y,
    }
}
