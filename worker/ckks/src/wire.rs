//! Canonical bytes of ciphertexts and evaluation keys. All integers little-endian.
//!
//! Ciphertext: "CHCT", version u16, domain u8 (1 = NTT), components u8 (2), level u8, scale row u8, zero u16,
//! parameter digest 32; then per component the limbs from q_0 up, N residues of 8 bytes each.
//!
//! Evaluation key: "CHEK", version u16, kind u8, digits u8, rotation u32, limbs u8, special u8, zero u16,
//! parameter digest 32, seed 32; then per digit the limbs (q, then p), N residues of the fewest whole bytes
//! their modulus fits in. The uniform halves are not stored.
//!
//! Parsing is strict: the size is checked before anything is allocated, no residue may reach its modulus,
//! nothing may follow, and every set of bytes that parses is what writing would give.

use crate::cipher::{Ciphertext, ScaleId};
use crate::context::Context;
use crate::error::CkksError;
use crate::keys::{EvalKey, KeyId, KeySpec};
use crate::params::Params;
use crate::poly::{Domain, Poly};
use rayon::prelude::*;
use sha2::{Digest, Sha256};

const VERSION: u16 = 1;
const CT_MAGIC: &[u8; 4] = b"CHCT";
const CT_HEADER: usize = 44;
const KEY_MAGIC: &[u8; 4] = b"CHEK";
const KEY_HEADER: usize = 80;
const DOMAIN_NTT: u8 = 1;

/// What a ciphertext's bytes say about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CiphertextInfo {
    /// Level.
    pub level: usize,
    /// Scale row; only `Message` may cross a hop boundary.
    pub scale: ScaleId,
    /// Number of components, 2.
    pub components: usize,
    /// Size in bytes.
    pub size: u64,
    /// SHA-256 of the bytes.
    pub digest: [u8; 32],
}

/// What an evaluation key's bytes say about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyInfo {
    /// Which key, and how many limbs it covers.
    pub spec: KeySpec,
    /// Size in bytes.
    pub size: u64,
    /// SHA-256 of the bytes.
    pub digest: [u8; 32],
}

struct CtHeader {
    level: usize,
    scale: ScaleId,
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

/// Checks what both formats begin with; on success at least `header` bytes are there.
fn check_start(
    bytes: &[u8],
    magic: &[u8; 4],
    what: &'static str,
    header: usize,
) -> Result<(), CkksError> {
    let have = bytes.len();
    if have >= 4 && bytes[..4] != *magic {
        return Err(CkksError::BadMagic(what));
    }
    if have >= 6 {
        let version = u16::from_le_bytes(array(bytes, 4));
        if version != VERSION {
            return Err(CkksError::UnsupportedVersion(version));
        }
    }
    if have < header {
        return Err(CkksError::Truncated {
            need: header as u64,
            have: have as u64,
        });
    }
    Ok(())
}

fn check_size(need: usize, have: usize) -> Result<(), CkksError> {
    let (need, have) = (need as u64, have as u64);
    match have.cmp(&need) {
        std::cmp::Ordering::Less => Err(CkksError::Truncated { need, have }),
        std::cmp::Ordering::Greater => Err(CkksError::Oversize { need, have }),
        std::cmp::Ordering::Equal => Ok(()),
    }
}

/// Bytes of a ciphertext at that level.
pub fn ciphertext_size(params: &Params, level: usize) -> usize {
    CT_HEADER + 2 * (level + 1) * params.n() * 8
}

fn parse_ct_header(
    params: &Params,
    digest: &[u8; 32],
    bytes: &[u8],
) -> Result<CtHeader, CkksError> {
    check_start(bytes, CT_MAGIC, "ciphertext", CT_HEADER)?;
    if bytes[12..44] != digest[..] {
        return Err(CkksError::ForeignParams);
    }
    if bytes[6] != DOMAIN_NTT {
        return Err(CkksError::BadHeader("domain"));
    }
    if bytes[7] != 2 {
        return Err(CkksError::BadHeader("components"));
    }
    let scale = ScaleId::from_u8(bytes[9]).ok_or(CkksError::BadHeader("scale"))?;
    let level = bytes[8] as usize;
    let range = match scale {
        ScaleId::Message => 0..=params.boot_out_level(),
        ScaleId::EvalMod => params.boot_out_level()..=params.max_level(),
    };
    if !range.contains(&level) {
        return Err(CkksError::BadHeader("level"));
    }
    if bytes[10..12] != [0, 0] {
        return Err(CkksError::BadHeader("reserved"));
    }
    check_size(ciphertext_size(params, level), bytes.len())?;
    Ok(CtHeader { level, scale })
}

/// Checks a ciphertext's bytes completely (header, size, every residue) without building any table.
pub fn inspect(params: &Params, bytes: &[u8]) -> Result<CiphertextInfo, CkksError> {
    let header = parse_ct_header(params, &params.digest(), bytes)?;
    let limbs = header.level + 1;
    bytes[CT_HEADER..]
        .par_chunks_exact(params.n() * 8)
        .enumerate()
        .try_for_each(|(i, limb)| {
            let limb_number = i % limbs;
            let q = params.q[limb_number];
            let bad = limb
                .chunks_exact(8)
                .position(|b| u64::from_le_bytes(array(b, 0)) >= q);
            match bad {
                Some(index) => Err(CkksError::ResidueOutOfRange {
                    limb: limb_number,
                    index,
                }),
                None => Ok(()),
            }
        })?;
    Ok(CiphertextInfo {
        level: header.level,
        scale: header.scale,
        components: 2,
        size: bytes.len() as u64,
        digest: Sha256::digest(bytes).into(),
    })
}

impl Ciphertext {
    /// Canonical bytes.
    pub fn to_bytes(&self, ctx: &Context) -> Vec<u8> {
        let mut out = Vec::with_capacity(ciphertext_size(ctx.params(), self.level));
        out.extend_from_slice(CT_MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&[DOMAIN_NTT, 2, self.level as u8, self.scale as u8, 0, 0]);
        out.extend_from_slice(ctx.params_digest());
        for c in [&self.c0, &self.c1] {
            out.extend(c.data.iter().flat_map(|x| x.to_le_bytes()));
        }
        out
    }

    /// Strict inverse of `to_bytes`.
    pub fn from_bytes(ctx: &Context, bytes: &[u8]) -> Result<Ciphertext, CkksError> {
        let header = parse_ct_header(ctx.params(), ctx.params_digest(), bytes)?;
        let limbs = header.level + 1;
        let component = |i: usize| {
            let size = limbs * ctx.n() * 8;
            let start = CT_HEADER + i * size;
            let poly = Poly {
                n: ctx.n(),
                limbs,
                domain: Domain::Ntt,
                data: bytes[start..start + size]
                    .chunks_exact(8)
                    .map(|b| u64::from_le_bytes(array(b, 0)))
                    .collect(),
            };
            poly.check_canonical(ctx)?;
            Ok::<_, CkksError>(poly)
        };
        Ok(Ciphertext {
            c0: component(0)?,
            c1: component(1)?,
            level: header.level,
            scale: header.scale,
        })
    }

    /// SHA-256 of the canonical bytes.
    pub fn digest(&self, ctx: &Context) -> [u8; 32] {
        Sha256::digest(self.to_bytes(ctx)).into()
    }
}

fn packed_width(q: u64) -> usize {
    (64 - q.leading_zeros()).div_ceil(8) as usize
}

fn key_moduli(params: &Params, spec: KeySpec) -> impl Iterator<Item = u64> + Clone + '_ {
    let special = spec.special_of(params);
    params.q[..spec.limbs]
        .iter()
        .chain(&params.p[..special])
        .copied()
}

/// Bytes of an evaluation key; the spec must be valid.
pub fn key_size(params: &Params, spec: KeySpec) -> usize {
    let widths: usize = key_moduli(params, spec).map(packed_width).sum();
    KEY_HEADER + spec.digits_of(params) * widths * params.n()
}

/// Checks a key's header and size.
fn parse_key_header(
    params: &Params,
    digest: &[u8; 32],
    bytes: &[u8],
) -> Result<KeySpec, CkksError> {
    check_start(bytes, KEY_MAGIC, "evaluation key", KEY_HEADER)?;
    if bytes[16..48] != digest[..] {
        return Err(CkksError::ForeignParams);
    }
    let id = KeyId::from_wire(bytes[6], u32::from_le_bytes(array(bytes, 8)))
        .ok_or(CkksError::BadHeader("key id"))?;
    let spec = KeySpec {
        id,
        limbs: bytes[12] as usize,
    };
    spec.check_in(params)?;
    if bytes[7] as usize != spec.digits_of(params) {
        return Err(CkksError::BadHeader("digits"));
    }
    if bytes[13] as usize != spec.special_of(params) {
        return Err(CkksError::BadHeader("special"));
    }
    if bytes[14..16] != [0, 0] {
        return Err(CkksError::BadHeader("reserved"));
    }
    check_size(key_size(params, spec), bytes.len())?;
    Ok(spec)
}

/// Reads the key's first bytes only (80 suffice): which key it is, and how many bytes it must have.
pub fn peek_key(params: &Params, bytes: &[u8]) -> Result<(KeySpec, u64), CkksError> {
    let start = &bytes[..bytes.len().min(KEY_HEADER)];
    match parse_key_header(params, &params.digest(), start) {
        Err(CkksError::Truncated { need, .. }) if start.len() == KEY_HEADER => {
            let id = KeyId::from_wire(start[6], u32::from_le_bytes(array(start, 8)))
                .ok_or(CkksError::BadHeader("key id"))?;
            let limbs = start[12] as usize;
            Ok((KeySpec { id, limbs }, need))
        }
        Err(e) => Err(e),
        Ok(spec) => Ok((spec, KEY_HEADER as u64)),
    }
}

/// One digit's limbs: ranges of bytes, residue width, modulus.
fn digit_limbs(params: &Params, spec: KeySpec) -> (usize, Vec<(usize, usize, u64)>) {
    let mut at = 0;
    let limbs = key_moduli(params, spec)
        .map(|q| {
            let width = packed_width(q);
            let start = at;
            at += width * params.n();
            (start, width, q)
        })
        .collect();
    (at, limbs)
}

fn unpack(bytes: &[u8], width: usize) -> impl Iterator<Item = u64> + '_ {
    bytes.chunks_exact(width).map(move |b| {
        let mut word = [0u8; 8];
        word[..width].copy_from_slice(b);
        u64::from_le_bytes(word)
    })
}

/// Checks an evaluation key's bytes completely without building any table or expanding the key.
pub fn inspect_key(params: &Params, bytes: &[u8]) -> Result<KeyInfo, CkksError> {
    let spec = parse_key_header(params, &params.digest(), bytes)?;
    let (size, limbs) = digit_limbs(params, spec);
    for digit in bytes[KEY_HEADER..].chunks_exact(size) {
        for (limb, &(start, width, q)) in limbs.iter().enumerate() {
            let packed = &digit[start..start + width * params.n()];
            if let Some(index) = unpack(packed, width).position(|x| x >= q) {
                return Err(CkksError::ResidueOutOfRange { limb, index });
            }
        }
    }
    Ok(KeyInfo {
        spec,
        size: bytes.len() as u64,
        digest: Sha256::digest(bytes).into(),
    })
}

impl EvalKey {
    /// Canonical bytes: the seed and the computed halves.
    pub fn to_bytes(&self, ctx: &Context) -> Vec<u8> {
        let (params, spec) = (ctx.params(), self.spec());
        let (tag, arg) = self.id.to_wire();
        let mut out = Vec::with_capacity(key_size(params, spec));
        out.extend_from_slice(KEY_MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&[tag, self.digits.len() as u8]);
        out.extend_from_slice(&arg.to_le_bytes());
        out.extend_from_slice(&[self.limbs as u8, self.special as u8, 0, 0]);
        out.extend_from_slice(ctx.params_digest());
        out.extend_from_slice(&self.seed);
        for digit in &self.digits {
            for (limb, q) in digit.b.chunks_exact(ctx.n()).zip(key_moduli(params, spec)) {
                let width = packed_width(q);
                for x in limb {
                    out.extend_from_slice(&x.to_le_bytes()[..width]);
                }
            }
        }
        out
    }

    /// Strict inverse of `to_bytes`; expands the uniform halves.
    pub fn from_bytes(ctx: &Context, bytes: &[u8]) -> Result<EvalKey, CkksError> {
        let params = ctx.params();
        let spec = parse_key_header(params, ctx.params_digest(), bytes)?;
        let (size, limbs) = digit_limbs(params, spec);
        let b = bytes[KEY_HEADER..]
            .chunks_exact(size)
            .map(|digit| {
                let mut b = Vec::with_capacity(limbs.len() * ctx.n());
                for &(start, width, _) in &limbs {
                    b.extend(unpack(&digit[start..start + width * ctx.n()], width));
                }
                b
            })
            .collect();
        EvalKey::from_parts(ctx, spec, array(bytes, 48), b)
    }

    /// SHA-256 of the canonical bytes.
    pub fn digest(&self, ctx: &Context) -> [u8; 32] {
        Sha256::digest(self.to_bytes(ctx)).into()
    }
}

#[cfg(test)]
mod tests;
