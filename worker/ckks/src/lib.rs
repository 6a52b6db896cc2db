//! CKKS over the ring Z[X]/(X^N + 1) in residue number systems: encoding, evaluation, key switching,
//! bootstrapping and the wire format. There is no secret key in this crate.
//!
//! Everything that is stored is canonical, everything that is computed on ciphertexts is integer
//! arithmetic, so results are the same bytes for any number of threads and any kernel.

mod blocks;
mod boot;
mod buffer;
mod cheb;
mod cipher;
mod complex;
mod context;
mod convert;
mod divide;
mod encode;
mod error;
mod eval;
mod fma;
mod fused;
mod ifma;
mod isa;
mod kernel;
mod keys;
mod linear;
mod modular;
mod ntt;
mod pack;
mod params;
mod poly;
mod roots;
mod switch;
mod uniform;
mod wire;

pub use blocks::SpareBlocks;
pub use boot::{BootProfile, Bootstrapper, EvalModSetting};
pub use buffer::keep_free_memory;
pub use cheb::{ChebPoly, cheb_depth};
pub use cipher::{Ciphertext, ExtCiphertext, PlainKind, Plaintext, Product, ScaleId};
pub use complex::Complex;
pub use context::Context;
pub use error::{CkksError, ParamError};
pub use eval::{Evaluator, Tensor};
pub use fma::FmaKernel;
pub use fused::{BabySums, InputLimb, SumLimb, Turn};
pub use ifma::emulated_ifma_kernel;
pub use isa::{Isa, kernel_for};
pub use kernel::{Kernel, KeyProduct, ScalarKernel};
pub use keys::{EvalKey, EvalKeys, KeyId, KeySource, KeySpec, expanded_key_size};
pub use linear::{LinearMap, PreparedMap};
pub use modular::{Modulus, Shoup, is_prime};
pub use ntt::NttTable;
pub use pack::{pack, packed_size, unpack};
pub use params::{Params, Security, bound_128};
pub use poly::{Domain, ExtPoly, Poly};
pub use switch::Digits;
pub use uniform::expand_uniform;
pub use wire::{
    CiphertextInfo, KeyInfo, ciphertext_size, inspect, inspect_key, key_size, peek_key,
};
