//! Where tokens, copies, heads and leaves lie in the slots (CIRCUIT.md section 2).
//!
//! Slot = token * B + copy * d + head * head_dim + lane. Token blocks from `tokens` on, if any, stay empty. Sums over
//! earlier tokens run around the end of the ring into later ones; the masks of the leaves drop those terms.

use cipherhop_ckks::Complex;

use crate::error::PlanError;
use crate::maps::parts_of;

/// Packing of one chain; equal for all its layers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Slots, S = N/2.
    pub slots: usize,
    /// Token blocks T', a power of two, at least the tokens.
    pub blocks: usize,
    /// Slots per token block, B.
    pub block: usize,
    /// Width of the residual stream.
    pub d: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Width of the MLP.
    pub mlp: usize,
    /// Private tokens, T.
    pub tokens: usize,
    /// Public tokens, P.
    pub prefix: usize,
    /// Whether queries and keys are normalised per head.
    pub qk_norm: bool,
    /// Full copies of a vector in a block.
    pub copies: usize,
    /// Row groups of the query/key/value map; each reads another part of the input, [`Layout::gather`] adds them.
    pub qkv_splits: usize,
    /// Row groups of the gate/up map.
    pub gate_splits: usize,
    /// Whether the down map's partial outputs lie in all copies, on the fewest diagonals.
    pub wide_down: bool,
    /// Groups of MLP units, each with its own row group in the down map, unless that is wide.
    pub groups: usize,
    /// MLP units per group.
    pub group_units: usize,
    /// Distance of two groups.
    pub group_stride: usize,
    /// Steps of the query/key/value, output, gate/up and down maps.
    pub map_parts: [usize; 4],
}

/// Model shape that a layout is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Width of the residual stream.
    pub d: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Width of the MLP.
    pub mlp: usize,
    /// Whether queries and keys are normalised per head.
    pub qk_norm: bool,
}

impl Layout {
    /// Packs `tokens` private tokens behind `prefix` public ones, or says what does not fit.
    pub fn new(
        shape: Shape,
        slots: usize,
        tokens: usize,
        prefix: usize,
    ) -> Result<Layout, PlanError> {
        let Shape {
            d,
            heads,
            kv_heads,
            head_dim,
            mlp,
            qk_norm,
        } = shape;
        let inconsistent = |what: &str| Err(PlanError::Inconsistent(what.to_string()));
        if heads == 0 || kv_heads == 0 || heads % kv_heads != 0 || d == 0 || mlp == 0 {
            return inconsistent("head counts and widths do not fit together");
        }
        if heads * head_dim != d {
            return inconsistent(
                "only models whose heads together are as wide as the residual are supported",
            );
        }
        if !head_dim.is_power_of_two() || head_dim < 4 {
            return inconsistent("the head width must be a power of two, at least 4");
        }
        if tokens == 0 || prefix == 0 {
            return inconsistent("at least one private and one public token are needed");
        }
        let widest = slots.min(1 << 20);
        if tokens > widest || prefix > widest || d > widest || mlp > widest {
            return Err(PlanError::TooLarge {
                what: "the prompt or the model in the slots of the ring",
                need: tokens.max(prefix).max(d).max(mlp),
                have: slots,
                hint: "shorten the prompt or use a larger ring".to_string(),
            });
        }
        let most = Layout::most_tokens(shape, slots, prefix);
        let blocks = tokens.next_power_of_two();
        let block = slots / blocks.max(1);
        let hint = |what: &str| {
            if most == 0 {
                format!("this model needs a larger ring than one with {slots} slots")
            } else {
                format!("at most {most} private tokens fit: {what}")
            }
        };
        let check = |what: &'static str, need: usize, have: usize| {
            if need <= have {
                return Ok(());
            }
            Err(PlanError::TooLarge {
                what,
                need,
                have,
                hint: hint("shorten the prompt or use a larger ring"),
            })
        };
        check("the query and key vectors in a token block", 2 * d, block)?;
        check(
            "one block per earlier token in a token block",
            tokens * d,
            block,
        )?;
        check("the MLP vector in a token block", mlp, block)?;
        let copies = block / d;
        let public = prefix - usize::from(!qk_norm);
        let shorter = |what: &'static str, need: usize, have: usize| {
            if need <= have {
                return Ok(());
            }
            Err(PlanError::TooLarge {
                what,
                need,
                have,
                hint: "use a shorter public prefix".to_string(),
            })
        };
        shorter("the public prefix in a token block", public, copies)?;
        if qk_norm {
            check("scores and both norms in a token block", 3 * d, block)?;
        }
        let mut layout = Layout {
            slots,
            blocks,
            block,
            d,
            heads,
            kv_heads,
            head_dim,
            mlp,
            tokens,
            prefix,
            qk_norm,
            copies,
            qkv_splits: 1,
            gate_splits: 1,
            wide_down: false,
            groups: 1,
            group_units: mlp,
            group_stride: mlp,
            map_parts: [1; 4],
        };
        let lanes = layout.leaf_lanes();
        shorter(
            "the attention tree in the lanes of a head",
            lanes + lanes / 2,
            head_dim,
        )?;
        layout.qkv_splits = layout.splits(2 * d);
        layout.gate_splits = layout.splits(mlp);
        layout.wide_down = ((mlp - 1) / d + 2) * d <= block;
        if !layout.wide_down {
            layout.choose_groups();
        }
        layout.count_parts();
        Ok(layout)
    }

    pub(crate) fn count_parts(&mut self) {
        let maps = [
            self.qkv_map(),
            self.o_map(),
            self.gate_up_map(),
            self.down_map(),
        ];
        self.map_parts = maps.map(|m| m.parts(parts_of(&m)).len());
    }

    /// Largest number of private tokens a ring can hold for this shape and prefix.
    pub fn most_tokens(shape: Shape, slots: usize, prefix: usize) -> usize {
        let fits = |tokens: usize| {
            let block = slots / tokens.next_power_of_two();
            let lanes = (prefix + tokens).next_power_of_two();
            shape.mlp <= block
                && shape.d * tokens.max(2 + usize::from(shape.qk_norm)) <= block
                && lanes + lanes / 2 <= shape.head_dim
        };
        (1..64).take_while(|t| fits(*t)).last().unwrap_or(0)
    }

    /// Splits the MLP units so that gate/up and down together need the fewest diagonals.
    fn choose_groups(&mut self) {
        let mut best: Option<(usize, Layout)> = None;
        for groups in 1..=self.copies {
            let units = self.mlp.div_ceil(groups);
            for stride in [units, self.d.max(units)] {
                let mut trial = self.clone();
                (trial.groups, trial.group_units, trial.group_stride) = (groups, units, stride);
                let fits =
                    (groups - 1) * stride + units <= self.block && (groups - 1) * units < self.mlp;
                if !fits {
                    continue;
                }
                let cost =
                    trial.gate_up_map().rotations().len() + trial.down_map().rotations().len();
                if best.as_ref().is_none_or(|(c, _)| cost < *c) {
                    best = Some((cost, trial));
                }
            }
        }
        if let Some((_, trial)) = best {
            *self = trial;
        }
    }

    /// Attention leaves: public keys, then private keys by distance.
    pub fn leaves(&self) -> usize {
        self.prefix + self.tokens
    }

    /// Tournament rounds.
    pub fn rounds(&self) -> usize {
        self.leaf_lanes().trailing_zeros() as usize
    }

    /// Lanes the leaves take, a power of two.
    pub fn leaf_lanes(&self) -> usize {
        self.leaves().next_power_of_two().max(2)
    }

    /// Whether leaf `leaf` exists for private token `token`.
    pub fn leaf_valid(&self, token: usize, leaf: usize) -> bool {
        token < self.tokens
            && leaf < self.leaves()
            && (leaf < self.prefix || leaf - self.prefix <= token)
    }

    /// First public leaf whose score is computed (leaf 0 is the reference unless keys are normalised).
    pub fn first_public(&self) -> usize {
        usize::from(!self.qk_norm)
    }

    /// Key/value head of a query head.
    pub fn kv_of(&self, head: usize) -> usize {
        head / (self.heads / self.kv_heads)
    }

    /// All slots; `f(token, position)` for private tokens, zero elsewhere.
    pub fn per_token(&self, f: impl Fn(usize, usize) -> Complex) -> Vec<Complex> {
        let mut out = vec![Complex::ZERO; self.slots];
        for t in 0..self.tokens {
            for p in 0..self.block {
                out[t * self.block + p] = f(t, p);
            }
        }
        out
    }

    /// One block; `f(copy, head, lane)` for the positions of full copies, zero in the rest.
    pub fn per_block(&self, f: impl Fn(usize, usize, usize) -> Complex) -> Vec<Complex> {
        (0..self.block)
            .map(|p| match self.place(p) {
                Some((c, h, i)) => f(c, h, i),
                None => Complex::ZERO,
            })
            .collect()
    }

    /// Copy, head and lane of a position in a block.
    pub fn place(&self, p: usize) -> Option<(usize, usize, usize)> {
        let (c, j) = (p / self.d, p % self.d);
        (c < self.copies).then(|| (c, j / self.head_dim, j % self.head_dim))
    }

    /// Real factors per slot from `f(token, copy, head, lane)`, for polynomial masks.
    pub fn lanes(&self, f: impl Fn(usize, usize, usize, usize) -> f64) -> Vec<f64> {
        let mut out = vec![0.0; self.slots];
        for t in 0..self.tokens {
            for p in 0..self.block {
                if let Some((c, h, i)) = self.place(p) {
                    out[t * self.block + p] = f(t, c, h, i);
                }
            }
        }
        out
    }

    /// The same as complex values.
    pub fn lanes_complex(&self, f: impl Fn(usize, usize, usize, usize) -> Complex) -> Vec<Complex> {
        self.per_token(|t, p| match self.place(p) {
            Some((c, h, i)) => f(t, c, h, i),
            None => Complex::ZERO,
        })
    }

    /// Position of an MLP unit in a block.
    pub fn unit_pos(&self, unit: usize) -> usize {
        unit / self.group_units * self.group_stride + unit % self.group_units
    }

    /// Puts one vector of `d` per private token into all copies of its block.
    pub fn pack(&self, tokens: &[f64]) -> Vec<Complex> {
        self.per_token(|t, p| {
            if p < self.copies * self.d {
                Complex::real(tokens[t * self.d + p % self.d])
            } else {
                Complex::ZERO
            }
        })
    }

    /// Reads copy 0 of every private token.
    pub fn unpack(&self, slots: &[Complex]) -> Vec<f64> {
        let at = |t: usize, j: usize| slots[t * self.block + j].re;
        (0..self.tokens)
            .flat_map(|t| (0..self.d).map(move |j| at(t, j)))
            .collect()
    }
}
