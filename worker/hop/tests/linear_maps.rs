//! The compiled linear maps against plain products, at tiny and at real widths (oracle/lin.py): right values at the
//! rows, exactly zero elsewhere, and the number of diagonals CIRCUIT.md promises.
#![allow(clippy::unwrap_used, missing_docs)]

mod support;

use cipherhop_ckks::Complex;
use cipherhop_hop::backend::Backend;
use cipherhop_hop::layout::Layout;
use cipherhop_hop::lin::LinearSpec;
use cipherhop_hop::sim::Sim;
use support::{FLOOR, Options, Rng, TOP, qwen3_2b, smol, tiny};

struct Check {
    layout: Layout,
    sim: Sim,
    rng: Rng,
}

impl Check {
    fn new(o: &Options) -> Check {
        Check {
            layout: Layout::new(o.shape, o.slots, o.tokens, o.prefix).unwrap(),
            sim: Sim::new(o.slots, FLOOR, TOP),
            rng: Rng(11),
        }
    }

    /// Applies `map` with random weights to random tokens; returns (error at rows, leak elsewhere).
    fn run(&mut self, map: &LinearSpec, outputs: usize) -> (f64, f64) {
        let lay = self.layout.clone();
        let inputs = map.inputs.len();
        let w: Vec<Complex> = (0..outputs * inputs)
            .map(|_| {
                let im = if map.pair.is_some() {
                    0.0
                } else {
                    self.rng.normal()
                };
                Complex::new(self.rng.normal(), im)
            })
            .collect();
        let x = self.rng.normals(lay.tokens * inputs, 1.0);
        let mut slots = vec![Complex::ZERO; lay.slots];
        for t in 0..lay.tokens {
            for k in 0..inputs {
                for c in 0..map.copies {
                    slots[t * lay.block + map.inputs[k] + c * map.stride] =
                        Complex::real(x[t * inputs + k]);
                }
            }
        }
        let x_in = self.sim.input(slots, TOP);
        let x_in = match map.pair {
            None => x_in,
            Some(h) => {
                let turned = self.sim.rotate(&x_in, h).unwrap();
                self.sim
                    .add(&x_in, &self.sim.mul_i(&turned).unwrap())
                    .unwrap()
            }
        };
        let y = self
            .sim
            .linear(&x_in, map, &|out, k| w[out * inputs + k])
            .unwrap();
        let mut want = vec![Complex::ZERO; lay.slots];
        for t in 0..lay.tokens {
            for row in &map.rows {
                let sum = (row.first..row.first + row.count).fold(Complex::ZERO, |s, k| {
                    s + w[row.out * inputs + k].scale(x[t * inputs + k])
                });
                let at = &mut want[t * lay.block + row.pos];
                *at = *at + sum;
            }
        }
        let rows: std::collections::BTreeSet<usize> = map.rows.iter().map(|r| r.pos).collect();
        // Every output reads every input once, over all its rows.
        let mut reads = vec![0u8; outputs * inputs];
        for row in &map.rows {
            (row.first..row.first + row.count).for_each(|k| reads[row.out * inputs + k] += 1);
        }
        assert!(reads.iter().all(|n| *n == 1));
        let (mut error, mut leak) = (0.0f64, 0.0f64);
        for (p, (a, b)) in y.slots.iter().zip(&want).enumerate() {
            let far = if map.pair.is_some() {
                (a.re - b.re).abs()
            } else {
                (*a - *b).abs()
            };
            if rows.contains(&(p % lay.block)) {
                error = error.max(far);
            } else {
                leak = leak.max(a.abs());
            }
        }
        (error, leak)
    }

    fn all(&mut self) {
        let lay = self.layout.clone();
        let d = lay.d;
        let qkv = self.run(&lay.qkv_map(), 2 * d);
        let o = self.run(&lay.o_map(), d);
        let gate = self.run(&lay.gate_up_map(), lay.mlp);
        let down = self.run(&lay.down_map(), d);
        println!(
            "B={}: qkv {}, o {}, gate/up {}, down {} diagonals ({} groups of {} units every {})",
            lay.block,
            lay.qkv_map().rotations().len(),
            lay.o_map().rotations().len(),
            lay.gate_up_map().rotations().len(),
            lay.down_map().rotations().len(),
            lay.groups,
            lay.group_units,
            lay.group_stride,
        );
        for (what, (error, leak)) in [("qkv", qkv), ("o", o), ("gate/up", gate), ("down", down)] {
            assert!(error < 1e-9, "{what}: error {error}");
            assert_eq!(leak, 0.0, "{what}");
        }
    }
}

#[test]
fn tiny_maps_equal_plain_products() {
    for qk_norm in [false, true] {
        Check::new(&tiny(qk_norm)).all();
    }
}

#[test]
fn maps_of_smollm2_width_equal_plain_products() {
    Check::new(&smol(8192, 3)).all();
    Check::new(&smol(32768, 7)).all();
}

#[test]
fn the_number_of_diagonals_is_the_designed_one() {
    let lay = |slots, tokens| {
        let o = smol(slots, tokens);
        Layout::new(o.shape, o.slots, o.tokens, o.prefix).unwrap()
    };
    let small = lay(8192, 3);
    assert_eq!(small.qkv_map().rotations().len(), 576);
    assert_eq!(small.o_map().rotations().len(), 288);
    assert!(small.gate_up_map().rotations().len() <= 960);
    assert!(small.down_map().rotations().len() <= 608);
    let large = lay(32768, 7);
    assert_eq!(large.qkv_map().rotations().len(), 192);
    assert_eq!(large.gate_up_map().rotations().len(), 288);
    assert_eq!(large.down_map().rotations().len(), 288);
    let o = qwen3_2b();
    let qwen = Layout::new(o.shape, o.slots, o.tokens, o.prefix).unwrap();
    assert_eq!((qwen.blocks, qwen.block, qwen.copies), (4, 8192, 4));
    let maps = [
        qwen.qkv_map(),
        qwen.o_map(),
        qwen.gate_up_map(),
        qwen.down_map(),
    ];
    let diagonals = maps.map(|m| m.rotations().len());
    assert_eq!(diagonals, [2048, 1024, 2048, 1024]);
}
