//! Traces of attempts, read as the claims of strangers: JSON lines, one per step, with the digest of every register
//! that went in and came out.

use std::collections::{BTreeMap, BTreeSet};

use cipherhop_proto::{Digest, Hasher};
use serde::Deserialize;

use crate::domain::attempt::Claim;

/// Register that holds the hop's input.
const INPUT: &str = "x";

type Registers = Vec<(String, String)>;

/// One line. Its time is not part of the root.
#[derive(Debug, Clone, PartialEq, Deserialize)]
struct Line {
    step: u32,
    name: String,
    inputs: Registers,
    outputs: Registers,
}

/// The steps of a hop as one attempt says they went.
#[derive(Debug, Clone, PartialEq)]
pub struct Trace(Vec<Line>);

/// Two traces, compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Compared {
    /// The first step whose outputs differ though its inputs are equal.
    At(Box<Differing>),
    /// They read different registers, or do not differ.
    Unclear,
}

/// The step to run again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Differing {
    /// Number of the step.
    pub step: u32,
    /// Its name.
    pub name: String,
    /// Register and digest of every input, equal in both traces.
    pub inputs: Vec<(String, Digest)>,
    /// Outputs of the first trace.
    pub first: Vec<Digest>,
    /// Outputs of the second.
    pub second: Vec<Digest>,
}

impl Compared {
    /// Number of the step to run again.
    pub fn step(&self) -> Option<u32> {
        match self {
            Compared::At(differing) => Some(differing.step),
            Compared::Unclear => None,
        }
    }
}

impl Trace {
    /// Reads a trace and checks that it hangs together: the program's steps in order, every input the last value of
    /// its register, the root and the output as claimed. Says what is wrong otherwise.
    pub fn read(
        bytes: &[u8],
        claim: &Claim,
        input: Digest,
        steps: &[String],
    ) -> Result<Trace, String> {
        let text = std::str::from_utf8(bytes).map_err(|_| "not UTF-8")?;
        let mut lines: Vec<Line> = Vec::with_capacity(steps.len());
        let mut registers: BTreeMap<&str, &str> = BTreeMap::new();
        for text in text.lines() {
            if lines.len() == steps.len() {
                return Err("more lines than the program has steps".to_owned());
            }
            let line: Line =
                serde_json::from_str(text).map_err(|e| format!("line {}: {e}", lines.len()))?;
            lines.push(line);
        }
        if lines.len() != steps.len() {
            return Err(format!("{} lines of {}", lines.len(), steps.len()));
        }
        let input = input.to_string();
        registers.insert(INPUT, &input);
        let mut root = Hasher::new();
        for (index, line) in (0u32..).zip(&lines) {
            if line.step != index || line.name != steps[index as usize] {
                return Err(format!("line {index} is of another step"));
            }
            for (register, digest) in &line.inputs {
                if registers.get(register.as_str()) != Some(&digest.as_str()) {
                    return Err(format!("step {index} reads a {register} that nobody wrote"));
                }
            }
            for (register, digest) in &line.outputs {
                if digest.parse::<Digest>().is_err() {
                    return Err(format!("step {index}: {register} has no digest"));
                }
                registers.insert(register, digest);
            }
            let parts = (line.step, &line.name, &line.inputs, &line.outputs);
            root.update(&serde_json::to_vec(&parts).map_err(|e| e.to_string())?);
            root.update(b"\n");
        }
        if root.finish() != claim.trace_root {
            return Err("another root than was claimed".to_owned());
        }
        let last = lines.last().and_then(|line| line.outputs.first());
        if last.is_none_or(|(_, digest)| *digest != claim.output.to_string()) {
            return Err("ends in another output than was claimed".to_owned());
        }
        Ok(Trace(lines))
    }

    /// Finds the first step that they disagree on.
    pub fn compare(&self, other: &Trace) -> Compared {
        let pairs = self.0.iter().zip(&other.0);
        let Some((one, two)) = pairs
            .into_iter()
            .find(|(one, two)| one.outputs != two.outputs || one.inputs != two.inputs)
        else {
            return Compared::Unclear;
        };
        let (Some(inputs), Some(first), Some(second)) = (
            digests(&one.inputs),
            digests(&one.outputs),
            digests(&two.outputs),
        ) else {
            return Compared::Unclear;
        };
        if one.inputs != two.inputs {
            return Compared::Unclear;
        }
        let names: BTreeSet<&String> = one.inputs.iter().map(|(name, _)| name).collect();
        if names.len() != one.inputs.len() {
            return Compared::Unclear;
        }
        let names = one.inputs.iter().map(|(name, _)| name.clone());
        Compared::At(Box::new(Differing {
            step: one.step,
            name: one.name.clone(),
            inputs: names.zip(inputs).collect(),
            first,
            second,
        }))
    }
}

fn digests(registers: &[(String, String)]) -> Option<Vec<Digest>> {
    registers
        .iter()
        .map(|(_, digest)| digest.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn digest(text: &str) -> String {
        Digest::of(text.as_bytes()).to_string()
    }

    fn steps() -> Vec<String> {
        ["a", "b", "c"].map(str::to_owned).to_vec()
    }

    /// A trace of three steps whose values are these.
    fn made(values: [&str; 3]) -> (Vec<u8>, Claim) {
        let mut text = String::new();
        let mut root = Hasher::new();
        let mut before = ("x".to_owned(), digest("in"));
        for (index, (name, value)) in (0u32..).zip(steps().iter().zip(values)) {
            let inputs = vec![before.clone()];
            before = (format!("r{index}"), digest(value));
            let outputs = vec![before.clone()];
            let parts = (index, name, &inputs, &outputs);
            root.update(serde_json::to_string(&parts).unwrap().as_bytes());
            root.update(b"\n");
            let line = serde_json::json!({
                "step": index, "name": name, "inputs": inputs, "outputs": outputs, "seconds": 0.5,
            });
            text.push_str(&format!("{line}\n"));
        }
        let claim = Claim {
            output: Digest::of(values[2].as_bytes()),
            output_size: 1,
            trace_root: root.finish(),
            trace: Digest::of(text.as_bytes()),
            trace_size: text.len() as u64,
            compute: Duration::ZERO,
        };
        (text.into_bytes(), claim)
    }

    fn read(bytes: &[u8], claim: &Claim) -> Result<Trace, String> {
        Trace::read(bytes, claim, Digest::of(b"in"), &steps())
    }

    #[test]
    fn the_first_step_with_other_outputs_is_found() {
        let (a, b) = (made(["1", "2", "3"]), made(["1", "two", "three"]));
        let (one, two) = (read(&a.0, &a.1).unwrap(), read(&b.0, &b.1).unwrap());
        let Compared::At(found) = one.compare(&two) else {
            panic!("not found")
        };
        assert_eq!((found.step, found.name.as_str()), (1, "b"));
        assert_eq!(found.inputs, [("r0".to_owned(), Digest::of(b"1"))]);
        assert_eq!(found.first, [Digest::of(b"2")]);
        assert_eq!(found.second, [Digest::of(b"two")]);
        assert_eq!(one.compare(&one), Compared::Unclear);
    }

    #[test]
    fn a_trace_that_does_not_hang_together_is_refused() {
        let (bytes, claim) = made(["1", "2", "3"]);
        let wrong = |change: &dyn Fn(&mut String, &mut Claim)| {
            let (mut text, mut claim) = (String::from_utf8(bytes.clone()).unwrap(), claim.clone());
            change(&mut text, &mut claim);
            read(text.as_bytes(), &claim).unwrap_err()
        };
        assert!(wrong(&|text, _| text.push_str("{}")).contains("more lines"));
        assert!(wrong(&|text, _| text.truncate(10)).contains("line 0"));
        assert!(wrong(&|text, _| text.clear()).contains("0 lines"));
        assert!(wrong(&|_, claim| claim.trace_root = Digest::of(b"")).contains("root"));
        assert!(wrong(&|_, claim| claim.output = Digest::of(b"")).contains("output"));
        assert!(wrong(&|text, _| *text = text.replace("\"b\"", "\"z\"")).contains("another step"));
        let swapped = |text: &mut String, _: &mut Claim| {
            *text = text.replacen(&digest("1"), &digest("0"), 1);
        };
        assert!(wrong(&swapped).contains("nobody wrote"));
        assert!(read(&[0xff, 0xfe], &claim).is_err());
    }
}
