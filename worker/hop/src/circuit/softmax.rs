//! Softmax as a tournament (CIRCUIT.md section 3): sigmoid gives the weight of a pair's second half, softplus
//! its log-sum-exp. Leaves lie in the lanes of block 0; a round halves the lanes in use.

use super::{Circuit, one};
use crate::backend::{Backend, Poly};
use crate::error::HopError;

impl Circuit<'_> {
    fn half(&self, round: usize) -> usize {
        self.layout.leaf_lanes() >> (round + 1)
    }

    /// Lane where the weights of a round begin in block 1 while they are bootstrapped.
    fn parked(&self, round: usize) -> usize {
        let lanes = self.layout.leaf_lanes();
        lanes - (lanes >> round)
    }

    fn park_steps(&self, round: usize) -> i64 {
        (self.layout.d + self.parked(round)) as i64
    }

    /// Pair weights and, but for the last round, the log-sum-exps.
    pub(super) fn round<B: Backend>(
        &self,
        b: &B,
        round: usize,
        l: &B::Ct,
    ) -> Result<Vec<B::Ct>, HopError> {
        let lay = self.layout;
        let half = self.half(round);
        let start = self.plan.round_level(lay, &self.levels, round);
        let l = if b.level(l) > start {
            b.drop_to(l, start)?
        } else {
            l.clone()
        };
        let diff = b.sub(&b.rotate(&l, half as i64)?, &l)?;
        let both = lay.lanes(|t, c, _, i| {
            f64::from(u8::from(c == 0 && i < half && lay.leaf_valid(t, i + half)))
        });
        let sigmoid = Poly::scaled("sigmoid", &self.plan.sigmoid, 1.0).masked(both.clone());
        if round + 1 == lay.rounds() {
            return b.polys(&diff, &[sigmoid]);
        }
        let softplus = Poly::scaled("softplus", &self.plan.softplus, 1.0).masked(both);
        let mut out = b.polys(&diff, &[sigmoid, softplus])?;
        let keep = lay.per_block(|c, _, i| one(c == 0 && i < half));
        let kept = b.mul_plain(&l, &keep)?;
        out[1] = b.add(&out[1], &kept)?;
        Ok(out)
    }

    /// Log-sum-exps in block 0, weights of earlier rounds in block 1. The two never meet in a difference of
    /// the following rounds, so nothing has to be masked afterwards.
    pub(super) fn pack_round<B: Backend>(
        &self,
        b: &B,
        l: &B::Ct,
        rounds: &[usize],
        weights: &[B::Ct],
    ) -> Result<B::Ct, HopError> {
        let floor = self.levels.floor;
        let mut sum = b.drop_to(l, floor)?;
        for (round, w) in rounds.iter().zip(weights) {
            let w = b.drop_to(w, floor)?;
            sum = b.add(&sum, &b.rotate(&w, -self.park_steps(*round))?)?;
        }
        Ok(sum)
    }

    pub(super) fn unpack_round<B: Backend>(
        &self,
        b: &B,
        x: &B::Ct,
        rounds: &[usize],
    ) -> Result<Vec<B::Ct>, HopError> {
        rounds
            .iter()
            .map(|&round| {
                let level = self.plan.weight_level(&self.levels, round) + 1;
                let x = b.drop_to(x, level.min(b.level(x)))?;
                let (from, half) = (self.parked(round), self.half(round));
                let mask = self
                    .layout
                    .per_block(|c, _, i| one(c == 1 && (from..from + half).contains(&i)));
                b.rotate(&b.mul_plain(&x, &mask)?, self.park_steps(round))
            })
            .collect()
    }

    /// From the last round's weight down to one probability per leaf lane. `weights` are those of the earlier
    /// rounds, latest first.
    pub(super) fn probabilities<B: Backend>(
        &self,
        b: &B,
        last: &B::Ct,
        weights: &[B::Ct],
    ) -> Result<B::Ct, HopError> {
        let rounds = self.layout.rounds();
        let all = self
            .layout
            .lanes_complex(|_, c, _, i| one(c == 0 && i == 0));
        let mut p = b.sub(&b.rotate(last, -1)?, last)?;
        p = b.add_plain(&p, &all)?;
        for (i, w) in weights.iter().enumerate() {
            let half = self.half(rounds - 2 - i) as i64;
            let moved = b.mul(&p, w)?;
            p = b.sub(&b.add(&p, &b.rotate(&moved, -half)?)?, &moved)?;
        }
        Ok(p)
    }
}
