//! GGML tensor types to f32. Block layouts as documented for the GGUF format (32 weights per block).

use super::{ModelError, error::malformed};

/// Tensor types this program reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TensorType {
    F32,
    F16,
    Bf16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
}

impl TensorType {
    pub(crate) fn from_ggml(id: u32) -> Result<Self, ModelError> {
        Ok(match id {
            0 => Self::F32,
            1 => Self::F16,
            2 => Self::Q4_0,
            3 => Self::Q4_1,
            6 => Self::Q5_0,
            7 => Self::Q5_1,
            8 => Self::Q8_0,
            30 => Self::Bf16,
            other => {
                return Err(ModelError::Unsupported(format!(
                    "tensor type {other}: supported are F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0"
                )));
            }
        })
    }

    /// Weights per block and bytes per block.
    fn block(self) -> (usize, usize) {
        match self {
            Self::F32 => (1, 4),
            Self::F16 | Self::Bf16 => (1, 2),
            Self::Q4_0 => (32, 18),
            Self::Q4_1 => (32, 20),
            Self::Q5_0 => (32, 22),
            Self::Q5_1 => (32, 24),
            Self::Q8_0 => (32, 34),
        }
    }

    /// Bytes of `count` weights in rows of `row`; an error when a row is no whole number of blocks.
    pub(crate) fn byte_len(self, count: usize, row: usize) -> Result<u64, ModelError> {
        let (weights, bytes) = self.block();
        if !row.is_multiple_of(weights) {
            return Err(malformed(format!(
                "a row of {row} weights is no whole number of blocks of {weights}"
            )));
        }
        (count / weights)
            .checked_mul(bytes)
            .map(|n| n as u64)
            .ok_or_else(|| malformed("tensor too large"))
    }

    /// All weights of `bytes`, in file order.
    pub(crate) fn decode(self, bytes: &[u8]) -> Vec<f32> {
        let (weights, size) = self.block();
        let mut out = Vec::with_capacity(bytes.len() / size * weights);
        for block in bytes.chunks_exact(size) {
            self.decode_block(block, &mut out);
        }
        out
    }

    fn decode_block(self, b: &[u8], out: &mut Vec<f32>) {
        let half = |i: usize| f16(u16::from_le_bytes([b[i], b[i + 1]]));
        // Nibble blocks store weights 0..16 in the low halves and 16..32 in the high halves.
        let nibbles = |from: usize| {
            let low = b[from..from + 16].iter().map(|v| v & 15);
            low.chain(b[from..from + 16].iter().map(|v| v >> 4))
        };
        let fifth = |i: usize| {
            let word = u32::from_le_bytes([b[i], b[i + 1], b[i + 2], b[i + 3]]);
            move |k: usize| ((word >> k) & 1) as u8 * 16
        };
        match self {
            Self::F32 => out.push(f32::from_le_bytes([b[0], b[1], b[2], b[3]])),
            Self::F16 => out.push(half(0)),
            Self::Bf16 => out.push(f32::from_bits(
                u32::from(u16::from_le_bytes([b[0], b[1]])) << 16,
            )),
            Self::Q4_0 => {
                let scale = half(0);
                out.extend(nibbles(2).map(|q| scale * (f32::from(q) - 8.0)));
            }
            Self::Q4_1 => {
                let (scale, min) = (half(0), half(2));
                out.extend(nibbles(4).map(|q| scale * f32::from(q) + min));
            }
            Self::Q5_0 => {
                let (scale, high) = (half(0), fifth(2));
                out.extend(
                    nibbles(6)
                        .enumerate()
                        .map(|(k, q)| scale * (f32::from(q + high(k)) - 16.0)),
                );
            }
            Self::Q5_1 => {
                let (scale, min, high) = (half(0), half(2), fifth(4));
                out.extend(
                    nibbles(8)
                        .enumerate()
                        .map(|(k, q)| scale * f32::from(q + high(k)) + min),
                );
            }
            Self::Q8_0 => {
                let scale = half(0);
                out.extend(b[2..].iter().map(|q| scale * f32::from(*q as i8)));
            }
        }
    }
}

/// IEEE half precision to single precision, exact.
fn f16(bits: u16) -> f32 {
    let sign = if bits & 0x8000 != 0 { -1.0 } else { 1.0 };
    let exponent = i32::from((bits >> 10) & 31);
    let fraction = f32::from(bits & 1023);
    match exponent {
        0 => sign * fraction * 2f32.powi(-24),
        31 if fraction == 0.0 => sign * f32::INFINITY,
        31 => f32::NAN,
        _ => sign * (1024.0 + fraction) * 2f32.powi(exponent - 25),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_precision_edges_are_exact() {
        for (bits, value) in [
            (0x3c00, 1.0),
            (0xc000, -2.0),
            (0x0001, 5.960_464_5e-8),
            (0x7bff, 65504.0),
            (0x0400, 6.103_515_6e-5),
        ] {
            assert_eq!(f16(bits), value);
        }
        assert!(f16(0x7e00).is_nan() && f16(0xfc00).is_infinite());
    }

    #[test]
    fn nibble_blocks_put_the_high_half_last() {
        let mut block = vec![0x00, 0x3c, 0x00, 0x40]; // scale 1, min 2
        block.extend([0x21; 16]);
        let w = TensorType::Q4_1.decode(&block);
        assert_eq!(
            (w.len(), w[0], w[15], w[16], w[31]),
            (32, 3.0, 3.0, 4.0, 4.0)
        );
        let mut block = vec![0x00, 0x3c, 0x01, 0, 0, 0x80]; // scale 1, fifth bits of weights 0 and 31
        block.extend([0x21; 16]);
        let w = TensorType::Q5_0.decode(&block);
        assert_eq!((w[0], w[1], w[16], w[31]), (1.0, -15.0, -14.0, 2.0));
    }

    #[test]
    fn a_ragged_row_is_refused() {
        assert!(TensorType::Q8_0.byte_len(64, 48).is_err());
        assert_eq!(TensorType::Q8_0.byte_len(64, 32).unwrap(), 68);
    }
}
