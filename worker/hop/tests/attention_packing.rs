//! Index arithmetic of attention (oracle/packq.py): scores and weighted values against plain loops, at B=2048 with 3
//! tokens and at B=4096 with 6 and 7.
#![allow(clippy::unwrap_used, missing_docs)]

mod support;

use cipherhop_ckks::Complex;
use cipherhop_hop::backend::Backend;
use cipherhop_hop::circuit::{Circuit, Op};
use cipherhop_hop::sim::Sim;
use support::{Case, FLOOR, Options, Rng, TOP, case, smol, tiny};

fn circuit(c: &Case) -> Circuit<'_> {
    Circuit {
        layout: &c.layout,
        plan: &c.plan,
        levels: c.levels,
        f: c.f,
        eps: c.eps,
        weights: &c.weights,
        rope: &c.rope,
    }
}

fn check(o: &Options) {
    let c = case(o, 3);
    let circuit = circuit(&c);
    let lay = &c.layout;
    let (d, hd, heads, tokens, prefix) = (lay.d, lay.head_dim, lay.heads, lay.tokens, lay.prefix);
    let sim = Sim::new(o.slots, FLOOR, TOP);
    let mut rng = Rng(5);
    let [q, k, v] = [(); 3].map(|()| rng.normals(tokens * d, 1.0));
    let place = |x: &[f64], block: usize, level| {
        let slots = lay.per_token(|t, p| {
            let at = p.wrapping_sub(block * d);
            Complex::real(if at < d { x[t * d + at] } else { 0.0 })
        });
        sim.input(slots, level)
    };
    let public = |kv: &[f32], j: usize, h: usize, i: usize| {
        f64::from(kv[(j * lay.kv_heads + lay.kv_of(h)) * hd + i])
    };
    let level = c.levels.values - 1;
    let s = circuit
        .exec(
            &sim,
            &Op::Scores,
            &[place(&q, 0, level), place(&k, 1, level)],
        )
        .unwrap();
    let first = lay.first_public();
    for t in 0..tokens {
        for h in 0..heads {
            let query = &q[t * d + h * hd..][..hd];
            for delta in 0..=t {
                let key = &k[(t - delta) * d + h * hd..][..hd];
                let want: f64 = query.iter().zip(key).map(|(a, b)| a * b).sum();
                let got = s[0].slots[t * lay.block + delta * d + h * hd].re;
                assert!(
                    (got - want).abs() < 1e-9,
                    "token {t} head {h} delta {delta}"
                );
            }
            for j in first..prefix {
                let key = |i| {
                    let base = if first == 1 {
                        public(&c.weights.pub_k, 0, h, i)
                    } else {
                        0.0
                    };
                    public(&c.weights.pub_k, j, h, i) - base
                };
                let want: f64 = query.iter().enumerate().map(|(i, a)| a * key(i)).sum();
                let got = s[0].slots[t * lay.block + (j - first) * d + h * hd].im;
                assert!((got - want).abs() < 1e-9, "token {t} head {h} public {j}");
            }
        }
    }

    let p = |t: usize, h: usize, leaf: usize| ((t * 7 + h * 3 + leaf * 5) % 11) as f64 / 11.0;
    let lanes = lay.lanes_complex(|t, copy, h, i| {
        let inside = copy == 0 && i < lay.leaf_lanes() && lay.leaf_valid(t, i);
        Complex::real(if inside { p(t, h, i) } else { 0.0 })
    });
    let spread = circuit
        .exec(&sim, &Op::Spread, &[sim.input(lanes, c.levels.values + 1)])
        .unwrap();
    let values = place(&v, 0, c.levels.values);
    let out = circuit
        .exec(&sim, &Op::Values, &[spread[0].clone(), values])
        .unwrap();
    for t in 0..tokens {
        for j in 0..d {
            let (h, i) = (j / hd, j % hd);
            let v0 = public(&c.weights.pub_v, 0, h, i);
            let mut want = v0;
            for leaf in 1..prefix {
                want += p(t, h, leaf) * (public(&c.weights.pub_v, leaf, h, i) - v0);
            }
            // Registers hold the values relative to public token 0 already.
            for delta in 0..=t {
                want += p(t, h, prefix + delta) * v[(t - delta) * d + j];
            }
            for copy in 0..2 {
                let got = out[0].slots[t * lay.block + copy * d + j];
                assert!(
                    (got.re - want).abs() < 1e-9 && got.im.abs() < 1e-9,
                    "token {t} entry {j}"
                );
            }
        }
    }
    assert_eq!(sim.level(&out[0]), c.levels.values - 2);
}

#[test]
fn scores_and_values_of_tiny_heads_are_where_they_belong() {
    for qk_norm in [false, true] {
        check(&tiny(qk_norm));
        check(&Options {
            prefix: 3,
            ..tiny(qk_norm)
        });
        // As many tokens as blocks.
        for tokens in [2, 4] {
            check(&Options {
                tokens,
                ..tiny(qk_norm)
            });
        }
    }
}

#[test]
fn scores_and_values_of_smollm2_heads_are_where_they_belong() {
    check(&smol(8192, 3));
    for tokens in [6, 7] {
        check(&Options {
            norm_degree: 63,
            ..smol(32768, tokens)
        });
    }
}
