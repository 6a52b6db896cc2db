//! The list of steps of a layer and the registers between them.

use super::Circuit;

/// What a step computes.
#[derive(Debug, Clone, PartialEq)]
pub enum Op {
    /// Normalised mean square of norm 0 or 1.
    NormStat(usize),
    /// Inverse square root, times the residual.
    NormApply(usize),
    /// Part of the query, key and value product.
    Qkv(usize),
    /// Adds the parts, splits the product, applies RoPE, subtracts the public reference.
    Heads,
    /// Scores against private and public keys.
    Scores,
    /// Scores (and norms) to leaf lanes.
    Leaves,
    /// Bootstrap, slots to coefficients.
    BootStc,
    /// Bootstrap, modulus raising.
    BootRaise,
    /// Bootstrap, coefficients to slots.
    BootCts {
        /// Keeps real and imaginary part.
        complex: bool,
    },
    /// Bootstrap, reduction.
    BootEvalMod {
        /// Factor applied on the way.
        gain: f64,
    },
    /// Applies the query and key norms to the raw scores.
    QkFactors,
    /// One tournament round.
    Round(usize),
    /// Puts the tournament's state into one ciphertext.
    Pack {
        /// Rounds whose weights go with it.
        rounds: Vec<usize>,
    },
    /// Takes the weights out again.
    Unpack {
        /// Rounds whose weights are inside.
        rounds: Vec<usize>,
    },
    /// Pair weights to probabilities in leaf lanes.
    Probabilities,
    /// Probabilities to the blocks of their keys, over all lanes of the head.
    Spread,
    /// Probabilities times values.
    Values,
    /// Part of the output product.
    Out(usize),
    /// Adds the parts and fills all copies.
    Copies,
    /// Sum.
    Add,
    /// Part of the gate and up product.
    GateUp(usize),
    /// Adds the parts and centres the gate on its interval.
    Centre,
    /// silu(gate) * up.
    Act,
    /// Part of the down product.
    Down(usize),
    /// Adds the parts and the row groups and fills all copies.
    Gather,
}

/// A pure function from registers to registers.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// Name, for progress and traces.
    pub name: String,
    /// What it computes.
    pub op: Op,
    /// Input registers.
    pub reads: Vec<String>,
    /// Output registers.
    pub writes: Vec<String>,
}

#[derive(Default)]
struct List(Vec<Step>);

impl List {
    fn push(&mut self, name: &str, op: Op, reads: &[&str], writes: &[&str]) {
        let own = |v: &[&str]| v.iter().map(|s| s.to_string()).collect();
        self.0.push(Step {
            name: name.to_string(),
            op,
            reads: own(reads),
            writes: own(writes),
        });
    }

    /// The steps of a linear map; returns the registers of its parts.
    fn parts(&mut self, name: &str, count: usize, op: fn(usize) -> Op, input: &str) -> Vec<String> {
        let regs: Vec<String> = (1..=count).map(|i| format!("{name}-{i}")).collect();
        for (i, reg) in regs.iter().enumerate() {
            self.push(&format!("{name}.{}", i + 1), op(i), &[input], &[reg]);
        }
        regs
    }

    fn join(&mut self, name: &str, op: Op, parts: &[String], writes: &[&str]) {
        let reads: Vec<&str> = parts.iter().map(String::as_str).collect();
        self.push(name, op, &reads, writes);
    }

    fn boot(&mut self, name: &str, input: &str, outputs: &[(&str, f64)]) {
        let reg = |stage: &str| format!("{name}.{stage}");
        let (stc, raised) = (reg("coeffs"), reg("raised"));
        let complex = outputs.len() > 1;
        let parts: Vec<String> = match complex {
            false => vec![reg("slots")],
            true => vec![reg("slots-re"), reg("slots-im")],
        };
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        self.push(&reg("stc"), Op::BootStc, &[input], &[&stc]);
        self.push(&reg("modraise"), Op::BootRaise, &[&stc], &[&raised]);
        self.push(&reg("cts"), Op::BootCts { complex }, &[&raised], &parts);
        for (i, (part, (out, gain))) in parts.iter().zip(outputs).enumerate() {
            let step = match (complex, i) {
                (false, _) => reg("evalmod"),
                (true, 0) => reg("evalmod-re"),
                (true, _) => reg("evalmod-im"),
            };
            self.push(&step, Op::BootEvalMod { gain: *gain }, &[part], &[out]);
        }
    }
}

impl Circuit<'_> {
    /// All steps in order; register `x` holds the input, the last step writes `out`.
    pub fn steps(&self) -> Vec<Step> {
        let mut l = List::default();
        l.push("norm1.stat", Op::NormStat(0), &["x"], &["m1"]);
        l.push("norm1.apply", Op::NormApply(0), &["x", "m1"], &["h1"]);
        let [qkv_parts, out_parts, gate_parts, down_parts] = self.layout.map_parts;
        let qkv = l.parts("qkv", qkv_parts, Op::Qkv, "h1");
        let qk = self.layout.qk_norm;
        let heads: &[&str] = if qk {
            &["q", "k", "v", "n"]
        } else {
            &["q", "k", "v"]
        };
        l.join("heads", Op::Heads, &qkv, heads);
        l.push("scores", Op::Scores, &["q", "k"], &["s"]);
        let scored: &[&str] = if qk { &["s", "n"] } else { &["s"] };
        l.push("leaves", Op::Leaves, scored, &["b2.in"]);
        l.boot("b2", "b2.in", &[("b2", 1.0)]);
        self.tournament(&mut l);
        l.push("spread", Op::Spread, &["p"], &["ps"]);
        l.push("values", Op::Values, &["ps", "v"], &["a"]);
        let out = l.parts("out", out_parts, Op::Out, "a");
        l.join("out.sum", Op::Copies, &out, &["b4.in"]);
        l.boot("b4", "b4.in", &[("attn", self.plan.o / self.f)]);
        l.push("residual1", Op::Add, &["x", "attn"], &["x1"]);
        l.push("norm2.stat", Op::NormStat(1), &["x1"], &["m2"]);
        l.push("norm2.apply", Op::NormApply(1), &["x1", "m2"], &["h2"]);
        let gate = l.parts("gate-up", gate_parts, Op::GateUp, "h2");
        l.join("gate-up.sum", Op::Centre, &gate, &["b5.in"]);
        l.boot("b5", "b5.in", &[("gate", 1.0), ("up", 1.0)]);
        l.push("act", Op::Act, &["gate", "up"], &["act"]);
        let down = l.parts("down", down_parts, Op::Down, "act");
        l.join("down.sum", Op::Gather, &down, &["boot.in"]);
        l.boot("boot", "boot.in", &[("mlp", self.plan.down / self.f)]);
        l.push("residual2", Op::Add, &["x1", "mlp"], &["out"]);
        l.0
    }

    fn tournament(&self, l: &mut List) {
        let rounds = self.layout.rounds();
        let mut state = "b2".to_string();
        if self.layout.qk_norm {
            l.push("qk-factors", Op::QkFactors, &[&state], &["l"]);
            state = "l".to_string();
        }
        // Register of the weights of every round so far, and whether a refresh has lifted it.
        let mut weights: Vec<(String, bool)> = Vec::new();
        for round in 0..rounds {
            if self.plan.refresh.get(round) == Some(&true) {
                let name = format!("b3-{}", round + 1);
                let tired: Vec<usize> = (0..weights.len()).filter(|i| !weights[*i].1).collect();
                let input = format!("{name}.in");
                let mut reads = vec![state.as_str()];
                reads.extend(tired.iter().map(|i| weights[*i].0.as_str()));
                let pack = Op::Pack {
                    rounds: tired.clone(),
                };
                l.push(&format!("{name}.pack"), pack, &reads, &[&input]);
                l.boot(&name, &input, &[(&name, 1.0)]);
                state = name.clone();
                if !tired.is_empty() {
                    let lifted: Vec<String> =
                        tired.iter().map(|i| format!("w{}-lifted", i + 1)).collect();
                    let writes: Vec<&str> = lifted.iter().map(String::as_str).collect();
                    let unpack = Op::Unpack {
                        rounds: tired.clone(),
                    };
                    l.push(&format!("{name}.unpack"), unpack, &[&state], &writes);
                    for (i, reg) in tired.into_iter().zip(lifted) {
                        weights[i] = (reg, true);
                    }
                }
            }
            let (w, next) = (format!("w{}", round + 1), format!("l{}", round + 1));
            let name = format!("round{}", round + 1);
            if round + 1 < rounds {
                l.push(&name, Op::Round(round), &[&state], &[&w, &next]);
                state = next;
            } else {
                l.push(&name, Op::Round(round), &[&state], &[&w]);
            }
            weights.push((w, false));
        }
        let reads: Vec<&str> = weights.iter().rev().map(|w| w.0.as_str()).collect();
        l.push("probabilities", Op::Probabilities, &reads, &["p"]);
    }
}
