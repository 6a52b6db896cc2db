//! The linear maps of a layer: which row lies where and which inputs it reads.

use crate::layout::Layout;
use crate::lin::{LinearSpec, Row, baby_steps};

/// Most row groups of one map; more save little, as the baby steps stay.
const MOST_SPLITS: usize = 4;

/// Steps that a map is cut into, so that the diagonals of one step stay below 64 MiB.
pub fn parts_of(map: &LinearSpec) -> usize {
    (map.rotations().len() * map.block).div_ceil(1 << 22).max(1)
}

impl Layout {
    /// Baby steps shared by all maps of the layer.
    pub fn n1(&self) -> usize {
        baby_steps(self.d)
    }

    fn vector_map(&self, rows: Vec<Row>, copies: usize) -> LinearSpec {
        LinearSpec {
            block: self.block,
            n1: self.n1(),
            rows,
            inputs: (0..self.d).collect(),
            stride: self.d,
            copies,
            pair: None,
            range: None,
        }
    }

    /// Most row groups of a map with `rows` contiguous rows that a block has room for.
    pub(crate) fn splits(&self, rows: usize) -> usize {
        let fits = |splits: usize| {
            let reach = self.d.div_ceil(splits);
            (splits - 1) * self.split_distance(rows, splits) + rows + reach <= self.copies * self.d
        };
        (2..=MOST_SPLITS).rev().find(|s| fits(*s)).unwrap_or(1)
    }

    /// Distance of two row groups.
    fn split_distance(&self, rows: usize, splits: usize) -> usize {
        rows.next_multiple_of(self.d) + self.d.div_ceil(splits)
    }

    /// Rotations that bring all row groups of a split map to the first.
    pub fn split_steps(&self, rows: usize, splits: usize) -> Vec<i64> {
        let distance = self.split_distance(rows, splits);
        (1..splits).map(|i| (i * distance) as i64).collect()
    }

    /// Every output once per row group. Group i reads the d/splits inputs that lie behind its row, so that all
    /// diagonals are below d/splits.
    fn split_rows(&self, rows: usize, splits: usize, place: impl Fn(usize) -> usize) -> Vec<Row> {
        let (d, reach) = (self.d, self.d.div_ceil(splits));
        let mut out = Vec::with_capacity(2 * splits * rows);
        for group in 0..splits {
            let count = reach.min(d - group * reach);
            for row in 0..rows {
                let pos = group * self.split_distance(rows, splits) + place(row);
                let first = (place(row) + group * reach) % d;
                let straight = count.min(d - first);
                for (first, count) in [(first, straight), (0, count - straight)] {
                    if count > 0 {
                        let out_row = Row {
                            pos,
                            out: row,
                            first,
                            count,
                        };
                        out.push(out_row);
                    }
                }
            }
        }
        out
    }

    /// Rows 0..d: query (real) and value (imaginary); rows d..2d: key.
    pub fn qkv_map(&self) -> LinearSpec {
        let rows = self.split_rows(2 * self.d, self.qkv_splits, |row| row);
        self.vector_map(rows, self.copies)
    }

    /// Attention output to block 0; input in copies 0 and 1.
    pub fn o_map(&self) -> LinearSpec {
        let row = |out| Row {
            pos: out,
            out,
            first: 0,
            count: self.d,
        };
        self.vector_map((0..self.d).map(row).collect(), 2).paired()
    }

    /// Gate (real) and up (imaginary) of every MLP unit.
    pub fn gate_up_map(&self) -> LinearSpec {
        let rows = if self.gate_splits > 1 {
            // Then the units are contiguous.
            self.split_rows(self.mlp, self.gate_splits, |unit| unit)
        } else {
            let row = |unit| Row {
                pos: self.unit_pos(unit),
                out: unit,
                first: 0,
                count: self.d,
            };
            (0..self.mlp).map(row).collect()
        };
        self.vector_map(rows, self.copies)
    }

    /// Copies over which the down map's partial outputs lie.
    pub fn down_copies(&self) -> usize {
        if self.wide_down {
            (self.mlp - 1) / self.d + 2
        } else {
            self.groups
        }
    }

    /// MLP units to partial outputs, at copies 0..[`Layout::down_copies`].
    pub fn down_map(&self) -> LinearSpec {
        let d = self.d;
        let mut rows = Vec::with_capacity(self.down_copies() * d);
        for copy in 0..self.down_copies() {
            for j in 0..d {
                let pos = copy * d + j;
                // Wide: the d units before the row, so that all diagonals are in -d..0.
                let (first, end) = if self.wide_down {
                    (pos.saturating_sub(d), pos)
                } else {
                    (copy * self.group_units, (copy + 1) * self.group_units)
                };
                let count = end.min(self.mlp).saturating_sub(first);
                if count > 0 {
                    rows.push(Row {
                        pos,
                        out: j,
                        first,
                        count,
                    });
                }
            }
        }
        LinearSpec {
            block: self.block,
            n1: self.n1(),
            rows,
            inputs: (0..self.mlp).map(|u| self.unit_pos(u)).collect(),
            stride: 1,
            copies: 1,
            pair: None,
            range: None,
        }
        .paired()
    }
}
