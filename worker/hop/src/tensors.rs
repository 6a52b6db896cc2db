//! Weights of one layer as the circuit reads them: rotated basis, norm gammas folded in.

use crate::layout::Layout;

/// Folded weights and the public tokens' keys and values.
#[derive(Debug, Clone, PartialEq)]
pub struct PackedLayer {
    /// Query matrix, `[heads * head_dim][d]`.
    pub q: Vec<f32>,
    /// Key matrix, `[kv_heads * head_dim][d]`.
    pub k: Vec<f32>,
    /// Value matrix, `[kv_heads * head_dim][d]`.
    pub v: Vec<f32>,
    /// Output matrix, `[d][heads * head_dim]`.
    pub o: Vec<f32>,
    /// Gate matrix, `[mlp][d]`.
    pub gate: Vec<f32>,
    /// Up matrix, `[mlp][d]`.
    pub up: Vec<f32>,
    /// Down matrix, `[d][mlp]`.
    pub down: Vec<f32>,
    /// Gammas of the query norm, `[head_dim]`; empty without q/k norm.
    pub q_gain: Vec<f32>,
    /// Gammas of the key norm.
    pub k_gain: Vec<f32>,
    /// Public keys after norm and RoPE, `[prefix][kv_heads][head_dim]`.
    pub pub_k: Vec<f32>,
    /// Public values.
    pub pub_v: Vec<f32>,
}

impl PackedLayer {
    /// Without matrices: enough to count levels, operations and keys.
    pub fn blank(layout: &Layout) -> PackedLayer {
        let gain = if layout.qk_norm { layout.head_dim } else { 0 };
        let public = layout.prefix * layout.kv_heads * layout.head_dim;
        PackedLayer {
            q: Vec::new(),
            k: Vec::new(),
            v: Vec::new(),
            o: Vec::new(),
            gate: Vec::new(),
            up: Vec::new(),
            down: Vec::new(),
            q_gain: vec![1.0; gain],
            k_gain: vec![1.0; gain],
            pub_k: vec![0.0; public],
            pub_v: vec![0.0; public],
        }
    }
}

/// Cosines and sines of the private positions, `[token][head_dim / 2]`, and how lanes pair up.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    /// Cosines.
    pub cos: Vec<f64>,
    /// Sines.
    pub sin: Vec<f64>,
    /// Lanes 2i and 2i+1 form a pair (else i and i + head_dim/2).
    pub interleaved: bool,
}

impl Rope {
    /// Distance of the two lanes of a pair.
    pub fn distance(&self, head_dim: usize) -> usize {
        if self.interleaved { 1 } else { head_dim / 2 }
    }

    /// Index of a lane's pair, and whether it is the second of it.
    pub fn pair(&self, head_dim: usize, lane: usize) -> (usize, bool) {
        if self.interleaved {
            (lane / 2, lane % 2 == 1)
        } else {
            (lane % (head_dim / 2), lane >= head_dim / 2)
        }
    }
}

impl From<crate::fold::LayerPack> for PackedLayer {
    fn from(p: crate::fold::LayerPack) -> PackedLayer {
        PackedLayer {
            q: p.q.data,
            k: p.k.data,
            v: p.v.data,
            o: p.o.data,
            gate: p.gate.data,
            up: p.up.data,
            down: p.down.data,
            q_gain: p.q_gamma.unwrap_or_default(),
            k_gain: p.k_gamma.unwrap_or_default(),
            pub_k: p.public_k,
            pub_v: p.public_v,
        }
    }
}
