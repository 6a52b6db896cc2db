//! The evaluation plan: pure, so that it can be checked in f64 and counted.

use super::ChebPoly;
use std::collections::BTreeSet;

/// constant + sum of coefficient * T_index + sum of node * T_g. All summands meet before one rescale.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Node {
    pub(crate) constant: f64,
    pub(crate) terms: Vec<(usize, f64)>,
    pub(crate) products: Vec<(usize, Node)>,
}

/// Plan for several polynomials of one argument.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Plan {
    pub(crate) nodes: Vec<Node>,
    /// indices of the power basis in ascending order, 1 included
    pub(crate) powers: Vec<usize>,
}

/// Depth of T_n: ceil(log2(n)).
pub(crate) fn power_depth(n: usize) -> usize {
    n.next_power_of_two().trailing_zeros() as usize
}

/// (a, b) with T_n = 2 T_a T_b - T_(a-b), for n >= 2.
pub(crate) fn powers_of(n: usize) -> (usize, usize) {
    if n.is_multiple_of(2) {
        (n / 2, n / 2)
    } else {
        let a = n.next_power_of_two() / 2;
        (a, n - a)
    }
}

impl Node {
    /// Splits off powers of two from the top until the rest is shorter than `leaf` and shallow enough for
    /// `depth` levels.
    fn build(coeffs: &[f64], depth: usize, leaf: usize) -> Node {
        let mut node = Node::default();
        let mut c = coeffs.to_vec();
        loop {
            let degree = c.iter().rposition(|&x| x != 0.0).unwrap_or(0);
            c.truncate(degree + 1);
            if degree == 0 {
                node.constant = c.first().copied().unwrap_or(0.0);
                return node;
            }
            if degree < leaf && power_depth(degree) < depth {
                node.constant = c[0];
                for (i, &x) in c.iter().enumerate().skip(1) {
                    if x != 0.0 {
                        node.terms.push((i, x));
                    }
                }
                return node;
            }
            let g = (degree + 1).next_power_of_two() / 2;
            if degree == g && power_depth(g) < depth {
                node.terms.push((g, c[g]));
                c[g] = 0.0;
                continue;
            }
            let mut q = vec![c[g]];
            for j in 1..=degree - g {
                let x = c[g + j];
                q.push(2.0 * x);
                c[g - j] -= x;
            }
            c.truncate(g);
            node.products.push((g, Node::build(&q, depth - 1, leaf)));
        }
    }

    fn collect_powers(&self, out: &mut BTreeSet<usize>) {
        out.extend(self.terms.iter().map(|t| t.0));
        for (g, q) in &self.products {
            out.insert(*g);
            q.collect_powers(out);
        }
    }

    /// Cost of the relinearisations below, at `depth` levels above the result.
    fn cost(&self, weight: &dyn Fn(usize) -> usize, result_level: usize) -> usize {
        let own = if self.products.is_empty() {
            0
        } else {
            weight(result_level + 1)
        };
        let below = |(_, q): &(usize, Node)| q.cost(weight, result_level + 1);
        own + self.products.iter().map(below).sum::<usize>()
    }
}

impl Plan {
    /// Whether any ciphertexts are multiplied with each other.
    pub(crate) fn multiplies(&self) -> bool {
        self.powers.len() > 1 || self.nodes.iter().any(|n| !n.products.is_empty())
    }

    /// The cheapest plan for an argument at `level` (at least the depth of every polynomial).
    pub(crate) fn new(polys: &[&ChebPoly], level: usize) -> Plan {
        // number of transforms in a relinearisation with digits of 8 limbs and 8 special limbs
        let weight = |level: usize| {
            let limbs = level + 1;
            limbs + limbs.div_ceil(8) * (limbs + 8) + 2 * (limbs + 8)
        };
        let candidate = |log_leaf: u32| {
            let nodes: Vec<Node> = polys
                .iter()
                .map(|p| Node::build(&p.coeffs, p.depth(), 1 << log_leaf))
                .collect();
            let mut wanted = BTreeSet::from([1]);
            nodes.iter().for_each(|n| n.collect_powers(&mut wanted));
            let mut powers = BTreeSet::new();
            while let Some(n) = wanted.pop_last() {
                powers.insert(n);
                if n > 1 {
                    let (a, b) = powers_of(n);
                    wanted.extend([a, b, a - b].into_iter().filter(|&x| x > 0));
                }
            }
            let of_powers: usize = powers
                .iter()
                .filter(|&&n| n > 1)
                .map(|&n| weight(level - power_depth(n) + 1))
                .sum();
            let of_nodes: usize = nodes
                .iter()
                .zip(polys)
                .map(|(n, p)| n.cost(&weight, level - p.depth()))
                .sum();
            let plan = Plan {
                nodes,
                powers: powers.into_iter().collect(),
            };
            (of_powers + of_nodes, plan)
        };
        let mut best = candidate(1);
        for log_leaf in 2..=6 {
            let next = candidate(log_leaf);
            if next.0 < best.0 {
                best = next;
            }
        }
        best.1
    }

    /// Levels of all relinearisations for an argument at `level` and polynomials of these depths.
    pub(crate) fn relinearisation_levels(&self, level: usize, depths: &[usize]) -> Vec<usize> {
        fn of(n: &Node, result: usize, out: &mut Vec<usize>) {
            if !n.products.is_empty() {
                out.push(result + 1);
            }
            n.products.iter().for_each(|(_, q)| of(q, result + 1, out));
        }
        let powers = self.powers.iter().filter(|&&n| n > 1);
        let mut out = powers.map(|&n| level - power_depth(n) + 1).collect();
        for (n, d) in self.nodes.iter().zip(depths) {
            of(n, level - d, &mut out);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cheb::{cheb_depth, clenshaw, relinearisation_levels};

    fn t(n: usize, u: f64) -> f64 {
        let mut c = vec![0.0; n + 1];
        c[n] = 1.0;
        clenshaw(&c, u)
    }

    /// value and levels used
    fn run(n: &Node, u: f64) -> (f64, usize) {
        let mut depth = 1;
        let mut value = n.constant;
        for &(i, c) in &n.terms {
            value += c * t(i, u);
            depth = depth.max(power_depth(i) + 1);
        }
        for (g, q) in &n.products {
            let (v, d) = run(q, u);
            value += v * t(*g, u);
            depth = depth.max(d + 1).max(power_depth(*g) + 1);
        }
        (value, depth)
    }

    fn coefficients(degree: usize, parity: Option<usize>) -> Vec<f64> {
        (0..=degree)
            .map(|i| match parity {
                Some(p) if i % 2 != p => 0.0,
                _ => ((i * 37 + 11) % 101) as f64 / 101.0 - 0.4,
            })
            .collect()
    }

    #[test]
    fn plans_are_exact_and_use_the_optimal_depth() {
        for degree in (1..=70).chain([95, 111, 127, 128, 200, 255]) {
            for parity in [None, Some(0), Some(1)] {
                let c = coefficients(degree, parity);
                let p = ChebPoly::new(c.clone(), -1.0, 1.0);
                if p.degree() == 0 {
                    continue;
                }
                let plan = Plan::new(&[&p], 20);
                for u in [-1.0, -0.73, 0.0, 0.11, 0.999] {
                    let (value, depth) = run(&plan.nodes[0], u);
                    assert!((value - clenshaw(&c, u)).abs() < 1e-9, "degree {degree}");
                    assert!(depth <= cheb_depth(p.degree()), "degree {degree}: {depth}");
                }
                for &n in plan.powers.iter().filter(|&&n| n > 1) {
                    let (a, b) = powers_of(n);
                    assert_eq!(a + b, n);
                    for x in [a, b, a - b] {
                        assert!(x == 0 || plan.powers.contains(&x), "T_{n} needs T_{x}");
                    }
                    assert!(power_depth(n) > power_depth(a).max(power_depth(b)));
                }
            }
        }
    }

    #[test]
    fn parity_and_lazy_relinearisation_save_key_switches() {
        let count = |degree, parity| {
            let p = ChebPoly::new(coefficients(degree, parity), -1.0, 1.0);
            relinearisation_levels(&[&p], 25).len()
        };
        assert_eq!(count(95, Some(1)), 15);
        assert_eq!(count(127, Some(1)), 19);
        assert!(count(63, None) <= 15, "{}", count(63, None));
        assert!(count(127, None) <= 24, "{}", count(127, None));
    }

    #[test]
    fn polynomials_share_the_power_basis() {
        let a = ChebPoly::new(coefficients(63, None), -1.0, 1.0);
        let b = ChebPoly::new(coefficients(63, Some(1)), -1.0, 1.0);
        let alone = |p: &ChebPoly| relinearisation_levels(&[p], 18).len();
        let plan = Plan::new(&[&a, &b], 18);
        let both = plan.relinearisation_levels(18, &[6, 6]).len();
        assert!(both < alone(&a) + alone(&b) - 5, "{both}");
    }
}
