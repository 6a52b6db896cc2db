//! The two domain changes as products of sparse matrices: layers of the special transform (the encoder's
//! butterflies without the bit reversal, which cancels between the two directions) are multiplied together
//! in groups, one level each (Chen, Chillotti, Song 2019; CIRCUIT.md section 6).

use crate::complex::Complex;
use crate::linear::LinearMap;
use std::collections::BTreeMap;

type Diagonals = BTreeMap<i64, Vec<Complex>>;

/// Numbers of butterfly layers per group, smallest stride first; the last group wraps around all slots and
/// therefore has half as many diagonals, so it takes the remainder.
pub(crate) fn group_sizes(layers: usize, groups: usize) -> Vec<usize> {
    (0..groups)
        .map(|g| (g + 1) * layers / groups - g * layers / groups)
        .collect()
}

/// One layer towards the slots: (x, y) -> (x + w y, x - w y).
fn layer_to_slots(twiddles: &[Complex]) -> Diagonals {
    let half = twiddles.len();
    let one = Complex::real(1.0);
    let mut d = [
        vec![one; 2 * half],
        vec![Complex::ZERO; 2 * half],
        vec![Complex::ZERO; 2 * half],
    ];
    for (p, &w) in twiddles.iter().enumerate() {
        d[0][p + half] = -w;
        d[1][p] = w;
        d[2][p + half] = one;
    }
    let [centre, up, down] = d;
    BTreeMap::from([(0, centre), (half as i64, up), (-(half as i64), down)])
}

/// Twice its inverse: (u, t) -> (u + t, (u - t) conj(w)).
fn layer_to_coefficients(twiddles: &[Complex]) -> Diagonals {
    let half = twiddles.len();
    let one = Complex::real(1.0);
    let mut d = [
        vec![one; 2 * half],
        vec![Complex::ZERO; 2 * half],
        vec![Complex::ZERO; 2 * half],
    ];
    for (p, &w) in twiddles.iter().enumerate() {
        d[0][p + half] = -w.conj();
        d[1][p] = one;
        d[2][p + half] = w.conj();
    }
    let [centre, up, down] = d;
    BTreeMap::from([(0, centre), (half as i64, up), (-(half as i64), down)])
}

/// second * first, both with coefficients at output positions; offsets are taken modulo `slots` once the
/// period has reached it.
fn compose(second: &Diagonals, first: &Diagonals, slots: usize) -> Diagonals {
    let len = |d: &Diagonals| d.values().next().map_or(1, Vec::len);
    let period = len(second).max(len(first));
    let mut out = Diagonals::new();
    for (&s, ds) in second {
        for (&r, dr) in first {
            let mut offset = s + r;
            if period == slots {
                offset = offset.rem_euclid(slots as i64);
            }
            let target = out
                .entry(offset)
                .or_insert_with(|| vec![Complex::ZERO; period]);
            for (p, t) in target.iter_mut().enumerate() {
                let q = (p as i64 + s).rem_euclid(dr.len() as i64) as usize;
                *t = *t + ds[p % ds.len()] * dr[q];
            }
        }
    }
    out.retain(|_, d| d.iter().any(|x| *x != Complex::ZERO));
    out
}

/// Multiplies the layers of each group together, in the order they are applied.
fn groups<'a>(
    layers: impl Iterator<Item = &'a Vec<Complex>>,
    sizes: impl Iterator<Item = usize>,
    make: fn(&[Complex]) -> Diagonals,
    slots: usize,
) -> Vec<Diagonals> {
    let mut layers = layers.map(|w| make(w));
    sizes
        .filter_map(|size| {
            layers
                .by_ref()
                .take(size)
                .reduce(|first, second| compose(&second, &first, slots))
        })
        .collect()
}

/// Baby steps per stage: a key for each, so fewer in the stage that wraps around, which has half as many
/// diagonals. One key switch of a giant step takes as long as a dozen baby steps.
fn baby_steps(diagonals: usize) -> usize {
    match diagonals {
        0..=16 => 4,
        17..=32 => 8,
        _ => 16,
    }
}

/// A stage whose input comes rotated to the right by `from` slots and whose output leaves rotated by `to`:
/// all offsets grow by `from - to`. The caller picks the two such that no offset is negative, so that baby and
/// giant steps are multiples of the stage's stride from 0 up, whose keys other stages and maps share.
fn to_map(diagonals: Diagonals, slots: usize, from: i64, to: i64) -> LinearMap {
    let period = diagonals.values().next().map_or(1, Vec::len);
    let mut map = LinearMap::new(period);
    map.n1 = baby_steps(diagonals.len());
    let turn = to.rem_euclid(period as i64) as usize;
    map.diagonals = diagonals
        .into_iter()
        .map(|(r, mut d)| {
            d.rotate_right(turn);
            let moved = r + from - to;
            let offset = if period == slots {
                moved.rem_euclid(slots as i64)
            } else {
                moved
            };
            (offset, d)
        })
        .collect();
    map
}

/// Strides of the stages, smallest first. Offsets of a stage reach from minus to plus the difference to the
/// next stride; the last one wraps around.
fn strides(sizes: &[usize]) -> Vec<i64> {
    let starts = sizes.iter().scan(0, |sum, size| {
        let start = *sum;
        *sum += size;
        Some(1i64 << start)
    });
    starts.collect()
}

/// Slots-to-coefficients in the order of application: afterwards the coefficients of the polynomial are the
/// former slot values in bit-reversed order. `layers` are the encoder's twiddles.
pub(crate) fn slots_to_coefficients(layers: &[Vec<Complex>], count: usize) -> Vec<LinearMap> {
    let slots = 1 << layers.len();
    let sizes = group_sizes(layers.len(), count);
    let strides = strides(&sizes);
    // between two stages everything is rotated to the left by the larger stride
    let shift = |i: usize| match strides.get(i) {
        Some(stride) if i > 0 => -stride,
        _ => 0,
    };
    groups(layers.iter(), sizes.into_iter(), layer_to_slots, slots)
        .into_iter()
        .enumerate()
        .map(|(i, d)| to_map(d, slots, shift(i), shift(i + 1)))
        .collect()
}

/// Coefficients-to-slots in the order of application, the inverse times the number of slots.
pub(crate) fn coefficients_to_slots(layers: &[Vec<Complex>], count: usize) -> Vec<LinearMap> {
    let slots = 1 << layers.len();
    let sizes = group_sizes(layers.len(), count);
    let strides = strides(&sizes);
    let shift = |i: usize| match strides.get(i) {
        Some(&stride) if i > 0 => stride,
        _ => 0,
    };
    groups(
        layers.iter().rev(),
        sizes.into_iter().rev(),
        layer_to_coefficients,
        slots,
    )
    .into_iter()
    .enumerate()
    .map(|(i, d)| to_map(d, slots, shift(count - i), shift(count - 1 - i)))
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ntt::reverse_bits;
    use crate::roots::special_twiddles;

    fn values(len: usize) -> Vec<Complex> {
        let mut x = 1u64;
        let mut next = || {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(99991);
            (x >> 40) as f64 / (1 << 23) as f64 - 1.0
        };
        (0..len).map(|_| Complex::new(next(), next())).collect()
    }

    #[test]
    fn groups_share_the_layers_and_the_top_takes_the_remainder() {
        assert_eq!(group_sizes(15, 3), [5, 5, 5]);
        assert_eq!(group_sizes(13, 3), [4, 4, 5]);
        assert_eq!(group_sizes(14, 3), [4, 5, 5]);
        assert_eq!(group_sizes(10, 3), [3, 3, 4]);
        assert_eq!(group_sizes(9, 3), [3, 3, 3]);
    }

    #[test]
    fn the_stages_move_slots_to_coefficients_and_back() {
        for log_slots in [9u32, 10] {
            let slots = 1usize << log_slots;
            let layers = special_twiddles(slots);
            let v = values(slots);
            let stc = slots_to_coefficients(&layers, 3);
            let z = stc.iter().fold(v.clone(), |x, m| m.apply(&x));
            // z are the slots of the polynomial whose coefficients k and k + slots are re and im of v[rev k]
            let n2 = 4 * slots;
            let mut power = 1usize;
            for (j, have) in z.iter().enumerate() {
                if j % 61 == 0 {
                    let mut want = Complex::ZERO;
                    for k in 0..slots {
                        let angle = std::f64::consts::TAU * ((k * power) % n2) as f64 / n2 as f64;
                        let root = Complex::new(angle.cos(), angle.sin());
                        want = want + v[reverse_bits(k, log_slots)] * root;
                    }
                    assert!((*have - want).abs() < 1e-9, "slot {j}");
                }
                power = power * 5 % n2;
            }
            let cts = coefficients_to_slots(&layers, 3);
            let back = cts.iter().fold(z, |x, m| m.apply(&x));
            for (a, b) in v.iter().zip(&back) {
                assert!((*a - b.scale(1.0 / slots as f64)).abs() < 1e-12);
            }
        }
    }

    #[test]
    fn the_number_of_diagonals_is_that_of_the_radix() {
        let layers = special_twiddles(1 << 10);
        let count =
            |maps: Vec<LinearMap>| maps.iter().map(|m| m.diagonals.len()).collect::<Vec<_>>();
        assert_eq!(count(slots_to_coefficients(&layers, 3)), [15, 15, 16]);
        assert_eq!(count(coefficients_to_slots(&layers, 3)), [16, 15, 15]);
    }

    #[test]
    fn the_rotations_are_few_multiples_of_the_strides() {
        let layers = special_twiddles(1 << 15);
        for maps in [slots_to_coefficients, coefficients_to_slots] {
            let mut all: Vec<u32> = maps(&layers, 3)
                .iter()
                .flat_map(|m| m.rotations(1 << 15))
                .collect();
            all.sort();
            let stage = |stride: u32, n1: u32| (1..=n1).map(move |k| k * stride);
            let want: Vec<u32> = stage(1, 16)
                .chain(stage(32, 16))
                .chain(stage(1024, 8))
                .collect();
            assert_eq!(all, want);
        }
    }
}
