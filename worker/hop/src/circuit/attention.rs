//! Queries, keys, values, scores; and after the softmax the weighted sum of values and the output product.

use cipherhop_ckks::Complex;

use super::{Circuit, one};
use crate::backend::{Backend, Poly, horner, span_sum};
use crate::error::HopError;
use crate::lin::LinearSpec;
use crate::maps::parts_of;

impl Circuit<'_> {
    fn expanded(&self, kv: &[f32], head: usize, lane: usize, token: usize) -> f64 {
        let lay = self.layout;
        let row = (token * lay.kv_heads + lay.kv_of(head)) * lay.head_dim + lane;
        f64::from(kv[row])
    }

    pub(super) fn qkv<B: Backend>(&self, b: &B, part: usize, h: &B::Ct) -> Result<B::Ct, HopError> {
        let (lay, w) = (self.layout, self.weights);
        let d = lay.d;
        // Half of everything: the split adds the conjugate.
        let row_of = |j: usize| lay.kv_of(j / lay.head_dim) * lay.head_dim + j % lay.head_dim;
        let weight = |out: usize, k: usize| {
            if out < d {
                let (q, v) = (w.q[out * d + k], w.v[row_of(out) * d + k]);
                Complex::new(0.5 * f64::from(q), 0.5 * f64::from(v))
            } else {
                Complex::real(0.5 * f64::from(w.k[row_of(out - d) * d + k]))
            }
        };
        b.linear(h, &self.part(lay.qkv_map(), part)?, &weight)
    }

    /// Query in block 0, key in block 1, value in block 0; with q/k norm also both mean squares in leaf lanes.
    pub(super) fn split_heads<B: Backend>(
        &self,
        b: &B,
        z: &[B::Ct],
    ) -> Result<Vec<B::Ct>, HopError> {
        let (lay, w) = (self.layout, self.weights);
        let z = self.gathered(b, z, 2 * lay.d, lay.qkv_splits)?;
        let zc = b.conj(&z)?;
        let r = b.add(&z, &zc)?;
        let mut v = b.mul_i(&b.sub(&zc, &z)?)?;
        if lay.qkv_splits > 1 {
            // The other row groups have left their parts behind; the RoPE tables mask queries and keys.
            v = b.mul_plain(&v, &lay.per_block(|c, _, _| one(c == 0)))?;
        }
        let r = b.drop_to(&r, self.levels.values)?;
        let v0 = lay.lanes_complex(|_, c, h, i| {
            Complex::real(if c == 0 {
                -self.expanded(&w.pub_v, h, i, 0)
            } else {
                0.0
            })
        });
        let v = b.add_plain(&v, &v0)?;

        let distance = self.rope.distance(lay.head_dim) as i64;
        let turned = b.rotate_many(&r, &[distance, -distance])?;
        let q = self.rope(b, &r, &turned, 0, &w.q_gain)?;
        let mut k = self.rope(b, &r, &turned, 1, &w.k_gain)?;
        let mut out = Vec::with_capacity(4);
        if !lay.qk_norm {
            let k0 = lay.lanes_complex(|_, c, h, i| {
                Complex::real(if c == 1 {
                    -self.expanded(&w.pub_k, h, i, 0)
                } else {
                    0.0
                })
            });
            k = b.add_plain(&k, &k0)?;
        }
        out.extend([q, k, v]);
        if lay.qk_norm {
            out.push(self.head_norms(b, &r)?);
        }
        Ok(out)
    }

    fn rope<B: Backend>(
        &self,
        b: &B,
        r: &B::Ct,
        turned: &[B::Ct],
        block: usize,
        gain: &[f32],
    ) -> Result<B::Ct, HopError> {
        let (lay, rope) = (self.layout, self.rope);
        let (hd, half) = (lay.head_dim, lay.head_dim / 2);
        let gain = |lane: usize| gain.get(lane).map_or(1.0, |g| f64::from(*g));
        let distance = rope.distance(hd);
        // which: 0 the lane itself, 1 its partner above, 2 its partner below
        let table = |which: usize| {
            lay.lanes_complex(|t, c, _, i| {
                let (pair, second) = rope.pair(hd, i);
                let at = t * half + pair;
                let value = match (which, second) {
                    (0, _) => rope.cos[at] * gain(i),
                    (1, false) => -rope.sin[at] * gain(i + distance),
                    (2, true) => rope.sin[at] * gain(i - distance),
                    _ => 0.0,
                };
                Complex::real(if c == block { value } else { 0.0 })
            })
        };
        let mut sum = b.mul_plain(r, &table(0))?;
        for (which, part) in turned.iter().enumerate() {
            sum = b.add(&sum, &b.mul_plain(part, &table(which + 1))?)?;
        }
        Ok(sum)
    }

    /// Normalised mean squares of key heads (block 1, lane of the private leaf) and query heads (block 2, all
    /// leaf lanes).
    fn head_norms<B: Backend>(&self, b: &B, r: &B::Ct) -> Result<B::Ct, HopError> {
        let lay = self.layout;
        let [q, k] = self.qk()?;
        let sum = span_sum(b, &b.square(r)?, 1, lay.head_dim)?;
        let pick = |block: usize, (a, c): (f64, f64)| {
            let at = move |copy: usize, lane: usize| copy == block && lane == 0;
            let factor = a / lay.head_dim as f64;
            let constant = a * self.eps + c;
            let m = b.mul_plain(
                &sum,
                &lay.per_block(|copy, _, i| one(at(copy, i)).scale(factor)),
            )?;
            b.add_plain(
                &m,
                &lay.lanes_complex(|_, copy, _, i| one(at(copy, i)).scale(constant)),
            )
        };
        let d = lay.d as i64;
        let nq = span_sum(b, &pick(0, q.affine())?, -1, lay.leaf_lanes())?;
        let nq = b.rotate(&nq, -2 * d)?;
        let nk = span_sum(
            b,
            &pick(1, k.affine())?,
            -(lay.block as i64 + 1),
            lay.tokens,
        )?;
        let nk = b.rotate(&nk, -(lay.prefix as i64))?;
        b.add(&nq, &nk)
    }

    fn qk(&self) -> Result<&[crate::plan::Approx; 2], HopError> {
        self.plan
            .qk
            .as_ref()
            .ok_or_else(|| HopError::Internal("no q/k norm polynomials".into()))
    }

    /// Private scores in block delta (real), public ones in blocks 0.. (imaginary), both in lane 0 of the head.
    pub(super) fn scores<B: Backend>(
        &self,
        b: &B,
        q: &B::Ct,
        k: &B::Ct,
    ) -> Result<B::Ct, HopError> {
        let (lay, w) = (self.layout, self.weights);
        let d = lay.d as i64;
        let (first, public) = (lay.first_public(), lay.prefix - lay.first_public());
        let q = span_sum(b, q, -d, lay.tokens.max(public))?;
        let k = span_sum(b, &b.rotate(k, d)?, -(lay.block as i64 + d), lay.tokens)?;
        let mut s = b.mul(&q, &k)?;
        if public > 0 {
            let key = |c: usize, h: usize, i: usize| {
                let mut k = self.expanded(&w.pub_k, h, i, c + first);
                if first == 1 {
                    k -= self.expanded(&w.pub_k, h, i, 0);
                }
                k
            };
            let keys = lay.per_block(|c, h, i| {
                Complex::new(0.0, if c < public { key(c, h, i) } else { 0.0 })
            });
            s = b.add(&s, &b.mul_plain(&q, &keys)?)?;
        }
        span_sum(b, &s, 1, lay.head_dim)
    }

    /// Scores to the leaf lanes of block 0, in units of their bound; q/k norms come along in blocks 1 and 2.
    pub(super) fn leaves<B: Backend>(
        &self,
        b: &B,
        s: &B::Ct,
        n: Option<&B::Ct>,
    ) -> Result<B::Ct, HopError> {
        let lay = self.layout;
        let bounds = if lay.qk_norm {
            [self.plan.raw_private, self.plan.raw_public]
        } else {
            [self.plan.score; 2]
        };
        let [unit, public_unit] = bounds.map(|b| 1.0 / ((lay.head_dim as f64).sqrt() * b));
        let step = lay.d as i64 - 1;
        let private = (0..lay.tokens)
            .map(|delta| {
                b.mul_plain(
                    s,
                    &lay.lanes_complex(|t, c, _, i| {
                        one(c == delta && i == 0 && t >= delta).scale(unit)
                    }),
                )
            })
            .collect::<Result<Vec<_>, _>>()?;
        let mut out = b.rotate(&horner(b, &private, step)?, -(lay.prefix as i64))?;
        let (first, public) = (lay.first_public(), lay.prefix - lay.first_public());
        if public > 0 {
            let terms = (0..public)
                .map(|j| {
                    let mask = lay.lanes_complex(|_, c, _, i| {
                        Complex::new(0.0, if c == j && i == 0 { -public_unit } else { 0.0 })
                    });
                    b.mul_plain(s, &mask)
                })
                .collect::<Result<Vec<_>, _>>()?;
            let sum = horner(b, &terms, step)?;
            let sum = if first == 0 {
                sum
            } else {
                b.rotate(&sum, -(first as i64))?
            };
            out = b.add(&out, &sum)?;
        }
        if let Some(n) = n {
            out = b.add(&out, n)?;
        }
        b.drop_to(&out, self.levels.floor)
    }

    /// Raw scores times the inverse norms of query and key, in units of the score bound.
    pub(super) fn qk_factors<B: Backend>(&self, b: &B, x: &B::Ct) -> Result<B::Ct, HopError> {
        let lay = self.layout;
        let [q, k] = self.qk()?;
        let depth = q.depth().max(k.depth()) + 2;
        let start = self.plan.round_level(lay, &self.levels, 0) + depth;
        let x = b.drop_to(x, start.min(self.levels.top))?;
        let lanes = lay.leaf_lanes();
        let raw = [self.plan.raw_private, self.plan.raw_public];
        let [private_unit, public_unit] = raw.map(|raw| raw / self.plan.score);
        let value = |yes: bool| f64::from(u8::from(yes));
        let q_poly = Poly::scaled("q norm", &q.coeffs, 1.0)
            .masked(lay.lanes(|t, c, _, i| value(c == 2 && i < lanes && lay.leaf_valid(t, i))));
        let k_poly = Poly::scaled("k norm", &k.coeffs, private_unit).masked(
            lay.lanes(|t, c, _, i| value(c == 1 && i >= lay.prefix && lay.leaf_valid(t, i))),
        );
        let roots = b.polys(&x, &[q_poly, k_poly])?;
        let d = lay.d as i64;
        let q_inv = b.rotate(&roots[0], 2 * d)?;
        let k_inv = b.rotate(&roots[1], d)?;
        let public =
            lay.lanes_complex(|_, c, _, i| one(c == 0 && i < lay.prefix).scale(public_unit));
        let k_inv = b.add_plain(&k_inv, &public)?;
        b.mul(&b.mul(&q_inv, &k_inv)?, &x)
    }

    /// Probabilities from leaf lanes to block delta (real) and to blocks 0.. for public leaves (imaginary),
    /// over all lanes of the head.
    pub(super) fn spread<B: Backend>(&self, b: &B, p: &B::Ct) -> Result<B::Ct, HopError> {
        let lay = self.layout;
        let p = b.drop_to(p, self.levels.values + 1)?;
        let step = -(lay.d as i64 - 1);
        let lane = |leaf: usize, private: bool| {
            let mask = lay.lanes_complex(|t, c, _, i| {
                let v = one(c == 0 && i == leaf && lay.leaf_valid(t, leaf));
                if private { v } else { v * Complex::I }
            });
            b.mul_plain(&p, &mask)
        };
        let private = (0..lay.tokens)
            .map(|delta| lane(lay.prefix + delta, true))
            .collect::<Result<Vec<_>, _>>()?;
        let mut sum = b.rotate(&horner(b, &private, step)?, lay.prefix as i64)?;
        if lay.prefix > 1 {
            let public = (1..lay.prefix)
                .map(|j| lane(j, false))
                .collect::<Result<Vec<_>, _>>()?;
            sum = b.add(&sum, &b.rotate(&horner(b, &public, step)?, 1)?)?;
        }
        span_sum(b, &sum, -1, lay.head_dim)
    }

    /// Weighted sum of the values, in copies 0 and 1.
    pub(super) fn values<B: Backend>(
        &self,
        b: &B,
        p: &B::Ct,
        v: &B::Ct,
    ) -> Result<B::Ct, HopError> {
        let (lay, w) = (self.layout, self.weights);
        let d = lay.d as i64;
        let v = b.drop_to(v, self.levels.values)?;
        let v = span_sum(b, &v, -(lay.block as i64 + d), lay.tokens)?;
        let mut o = b.mul(p, &v)?;
        let public = lay.prefix - 1;
        if public > 0 {
            let value = lay.per_block(|c, h, i| {
                if c >= public {
                    return Complex::ZERO;
                }
                let v = self.expanded(&w.pub_v, h, i, c + 1) - self.expanded(&w.pub_v, h, i, 0);
                Complex::new(0.0, -v)
            });
            o = b.add(&o, &b.mul_plain(p, &value)?)?;
        }
        let o = span_sum(b, &o, d, lay.tokens.max(public))?;
        let half = lay.per_block(|c, _, _| one(c == 0).scale(0.5));
        let o = b.mul_plain(&o, &half)?;
        let o = b.add(&o, &b.conj(&o)?)?;
        let v0 = lay.lanes_complex(|_, c, h, i| {
            Complex::real(if c == 0 {
                self.expanded(&w.pub_v, h, i, 0)
            } else {
                0.0
            })
        });
        let o = b.add_plain(&o, &v0)?;
        span_sum(b, &o, -d, 2)
    }

    /// A part of the output product in units of its bound.
    pub(super) fn out<B: Backend>(&self, b: &B, part: usize, a: &B::Ct) -> Result<B::Ct, HopError> {
        let (lay, w) = (self.layout, self.weights);
        let map = self.part(lay.o_map(), part)?;
        let x = self.paired(b, a, &map)?;
        let unit = 1.0 / self.plan.o;
        let weight = |out: usize, k: usize| Complex::real(unit * f64::from(w.o[out * lay.d + k]));
        b.linear(&x, &map, &weight)
    }

    /// Sum of the parts, in all copies.
    pub(super) fn copies<B: Backend>(&self, b: &B, parts: &[B::Ct]) -> Result<B::Ct, HopError> {
        let y = self.sum(b, parts)?;
        span_sum(b, &y, -(self.layout.d as i64), self.layout.copies)
    }

    /// Part number `part` of a map.
    pub(super) fn part(&self, map: LinearSpec, part: usize) -> Result<LinearSpec, HopError> {
        map.parts(parts_of(&map))
            .into_iter()
            .nth(part)
            .ok_or_else(|| HopError::Internal("no such part of a map".into()))
    }

    /// Sum of ciphertexts.
    pub(super) fn sum<B: Backend>(&self, b: &B, parts: &[B::Ct]) -> Result<B::Ct, HopError> {
        horner(b, parts, 0)
    }

    /// Sum of the parts and of the row groups of a split map; what lies behind the first group is left over.
    pub(super) fn gathered<B: Backend>(
        &self,
        b: &B,
        parts: &[B::Ct],
        rows: usize,
        splits: usize,
    ) -> Result<B::Ct, HopError> {
        let y = self.sum(b, parts)?;
        let moved = b.rotate_many(&y, &self.layout.split_steps(rows, splits))?;
        moved.iter().try_fold(y, |sum, part| b.add(&sum, part))
    }

    /// x + i*rot(x, h) for a paired map.
    pub(super) fn paired<B: Backend>(
        &self,
        b: &B,
        x: &B::Ct,
        map: &LinearSpec,
    ) -> Result<B::Ct, HopError> {
        match map.pair {
            None => Ok(x.clone()),
            Some(h) => b.add(x, &b.mul_i(&b.rotate(x, h)?)?),
        }
    }
}
