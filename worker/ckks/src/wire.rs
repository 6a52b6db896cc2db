//! Canonical bytes of ciphertexts and evaluation keys. All integers little-endian, residues bit-packed ([`crate::pack`]):
//! 42 or 50 bits instead of 64.
//!
//! Ciphertext: "CHCT", version u16, domain u8 (1 = NTT), components u8 (2), level u8, scale row u8, zero u16,
//! parameter digest 32; then per component the limbs from q_0 up, N residues each.
//!
//! Evaluation key: "CHEK", version u16, kind u8, digits u8, rotation u32, limbs u8, special u8, zero u16,
//! parameter digest 32, seed 32; then per digit the limbs (q, then p), N residues each. The uniform halves are not
//! stored.
//!
//! Parsing is strict: the size is checked before anything is allocated, no residue may reach its modulus,
//! nothing may follow, and every set of bytes that parses is what writing would give. Digests are over these bytes.
//! Version 1 had whole bytes per residue.

use crate::blocks::{Limbs, SpareBlocks};
use crate::cipher::{Ciphertext, ScaleId};
use crate::context::Context;
use crate::error::CkksError;
use crate::keys::{EvalKey, KeyDigit, KeyId, KeySpec};
use crate::pack::{pack_into, packed_size, unpack};
use crate::params::Params;
use crate::poly::{Domain, Poly};
use rayon::prelude::*;
use sha2::{Digest, Sha256};
use std::io::Read;

const VERSION: u16 = 2;
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

fn check_size(need: u64, have: u64) -> Result<(), CkksError> {
    match have.cmp(&need) {
        std::cmp::Ordering::Less => Err(CkksError::Truncated { need, have }),
        std::cmp::Ordering::Greater => Err(CkksError::Oversize { need, have }),
        std::cmp::Ordering::Equal => Ok(()),
    }
}

/// Bytes of a ciphertext at that level.
pub fn ciphertext_size(params: &Params, level: usize) -> usize {
    CT_HEADER + 2 * packed_limbs(params.n(), params.q[..=level].iter().copied()).0
}

/// Bytes of consecutive limbs; and each limb's first byte and modulus.
fn packed_limbs(n: usize, moduli: impl Iterator<Item = u64>) -> (usize, Vec<(usize, u64)>) {
    let mut at = 0;
    let limbs = moduli
        .map(|q| {
            let start = at;
            at += packed_size(n, q);
            (start, q)
        })
        .collect();
    (at, limbs)
}

/// Writes limbs, each with its modulus, one after the other, on all threads.
fn pack_limbs<'a>(limbs: impl Iterator<Item = (&'a [u64], &'a u64)>, out: &mut [u8]) {
    let mut rest = out;
    let mut parts = Vec::new();
    for (limb, &q) in limbs {
        let (out, tail) = std::mem::take(&mut rest).split_at_mut(packed_size(limb.len(), q));
        rest = tail;
        parts.push((limb, q, out));
    }
    parts
        .into_par_iter()
        .for_each(|(limb, q, out)| pack_into(limb, q, out));
}

/// Reads one component's limbs, on all threads.
fn unpack_limbs(
    n: usize,
    bytes: &[u8],
    limbs: &[(usize, u64)],
    out: &mut [u64],
) -> Result<(), CkksError> {
    out.par_chunks_exact_mut(n)
        .zip(limbs)
        .enumerate()
        .try_for_each(|(limb, (out, &(start, q)))| {
            unpack(&bytes[start..start + packed_size(n, q)], q, out)
                .map_err(|index| CkksError::ResidueOutOfRange { limb, index })
        })
}

/// The same without keeping the residues.
fn check_limbs(n: usize, bytes: &[u8], limbs: &[(usize, u64)]) -> Result<(), CkksError> {
    limbs.par_iter().enumerate().try_for_each_init(
        || vec![0; n],
        |out, (limb, &(start, q))| {
            unpack(&bytes[start..start + packed_size(n, q)], q, out)
                .map_err(|index| CkksError::ResidueOutOfRange { limb, index })
        },
    )
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
    check_size(ciphertext_size(params, level) as u64, bytes.len() as u64)?;
    Ok(CtHeader { level, scale })
}

/// Checks a ciphertext's bytes completely (header, size, every residue) without building any table.
pub fn inspect(params: &Params, bytes: &[u8]) -> Result<CiphertextInfo, CkksError> {
    let header = parse_ct_header(params, &params.digest(), bytes)?;
    let moduli = params.q[..=header.level].iter().copied();
    let (size, limbs) = packed_limbs(params.n(), moduli);
    for component in bytes[CT_HEADER..].chunks_exact(size) {
        check_limbs(params.n(), component, &limbs)?;
    }
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
        let header = [
            &CT_MAGIC[..],
            &VERSION.to_le_bytes(),
            &[DOMAIN_NTT, 2, self.level as u8, self.scale as u8, 0, 0],
            ctx.params_digest(),
        ];
        let mut out = vec![0; ciphertext_size(ctx.params(), self.level)];
        out[..CT_HEADER].copy_from_slice(&header.concat());
        let limbs = [&self.c0, &self.c1]
            .into_iter()
            .flat_map(|c| c.data.chunks_exact(c.n).zip(&ctx.params().q));
        pack_limbs(limbs, &mut out[CT_HEADER..]);
        out
    }

    /// Strict inverse of `to_bytes`.
    pub fn from_bytes(ctx: &Context, bytes: &[u8]) -> Result<Ciphertext, CkksError> {
        let header = parse_ct_header(ctx.params(), ctx.params_digest(), bytes)?;
        let moduli = ctx.params().q[..=header.level].iter().copied();
        let (size, limbs) = packed_limbs(ctx.n(), moduli);
        let component = |i: usize| {
            let mut poly = Poly::zero(ctx.n(), limbs.len(), Domain::Ntt);
            let bytes = &bytes[CT_HEADER + i * size..][..size];
            unpack_limbs(ctx.n(), bytes, &limbs, &mut poly.data)?;
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

fn key_moduli(params: &Params, spec: KeySpec) -> impl Iterator<Item = u64> + Clone + '_ {
    let special = spec.special_of(params);
    params.q[..spec.limbs]
        .iter()
        .chain(&params.p[..special])
        .copied()
}

/// Bytes of an evaluation key; the spec must be valid.
pub fn key_size(params: &Params, spec: KeySpec) -> usize {
    KEY_HEADER + spec.digits_of(params) * packed_limbs(params.n(), key_moduli(params, spec)).0
}

/// Checks a key's header; returns how many bytes the key must have.
fn parse_key_start(
    params: &Params,
    digest: &[u8; 32],
    bytes: &[u8],
) -> Result<(KeySpec, usize), CkksError> {
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
    Ok((spec, key_size(params, spec)))
}

/// Checks a key's header and size.
fn parse_key_header(
    params: &Params,
    digest: &[u8; 32],
    bytes: &[u8],
) -> Result<KeySpec, CkksError> {
    let (spec, need) = parse_key_start(params, digest, bytes)?;
    check_size(need as u64, bytes.len() as u64)?;
    Ok(spec)
}

fn read_exactly(from: &mut impl Read, out: &mut [u8]) -> Result<(), CkksError> {
    from.read_exact(out)
        .map_err(|e| CkksError::Unreadable(e.to_string()))
}

/// Residues read at a time, so that they are unpacked while their bytes are in cache.
const PIECE: usize = 1 << 14;

/// Reads consecutive limbs; feeds what it reads to `hash` if there is one.
fn read_limbs<'a>(
    n: usize,
    moduli: impl Iterator<Item = u64>,
    from: &mut impl Read,
    mut hash: Option<&mut Sha256>,
    out: impl Iterator<Item = &'a mut [u64]>,
) -> Result<(), CkksError> {
    let piece = n.min(PIECE);
    let mut packed = Vec::new();
    for ((limb, out), q) in out.enumerate().zip(moduli) {
        packed.resize(packed_size(piece, q), 0);
        for (number, out) in out.chunks_exact_mut(piece).enumerate() {
            read_exactly(from, &mut packed)?;
            if let Some(hash) = hash.as_deref_mut() {
                hash.update(&packed);
            }
            unpack(&packed, q, out).map_err(|index| CkksError::ResidueOutOfRange {
                limb,
                index: number * piece + index,
            })?;
        }
    }
    Ok(())
}

/// Reads the key's first bytes only (80 suffice): which key it is, and how many bytes it must have.
pub fn peek_key(params: &Params, bytes: &[u8]) -> Result<(KeySpec, u64), CkksError> {
    let (spec, need) = parse_key_start(params, &params.digest(), bytes)?;
    Ok((spec, need as u64))
}

/// Checks an evaluation key's bytes completely without building any table or expanding the key.
pub fn inspect_key(params: &Params, bytes: &[u8]) -> Result<KeyInfo, CkksError> {
    let spec = parse_key_header(params, &params.digest(), bytes)?;
    let (size, limbs) = packed_limbs(params.n(), key_moduli(params, spec));
    for digit in bytes[KEY_HEADER..].chunks_exact(size) {
        check_limbs(params.n(), digit, &limbs)?;
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
        let header = [
            &KEY_MAGIC[..],
            &VERSION.to_le_bytes(),
            &[tag, self.digits.len() as u8],
            &arg.to_le_bytes(),
            &[self.limbs as u8, self.special as u8, 0, 0],
            ctx.params_digest(),
            &self.seed,
        ];
        let mut out = vec![0; key_size(params, spec)];
        out[..KEY_HEADER].copy_from_slice(&header.concat());
        let moduli: Vec<u64> = key_moduli(params, spec).collect();
        let limbs = self
            .digits
            .iter()
            .flat_map(|digit| digit.b.iter().zip(&moduli));
        pack_limbs(limbs, &mut out[KEY_HEADER..]);
        out
    }

    /// Strict inverse of `to_bytes`; expands the uniform halves.
    pub fn from_bytes(ctx: &Context, bytes: &[u8]) -> Result<EvalKey, CkksError> {
        parse_key_header(ctx.params(), ctx.params_digest(), bytes)?;
        let mut spare = SpareBlocks::default();
        let size = bytes.len() as u64;
        EvalKey::read(ctx, &mut &bytes[..], size, None, &mut spare)
    }

    /// The same from a file of `size` bytes, little by little, so that the bytes and the key are never in memory
    /// together. Feeds everything it reads to `hash` if there is one, and uses spare memory where it fits.
    pub fn read(
        ctx: &Context,
        from: &mut (impl Read + Send),
        size: u64,
        mut hash: Option<&mut Sha256>,
        spare: &mut SpareBlocks,
    ) -> Result<EvalKey, CkksError> {
        let (params, n) = (ctx.params(), ctx.n());
        let mut header = [0; KEY_HEADER];
        read_exactly(from, &mut header)?;
        let (spec, need) = parse_key_start(params, ctx.params_digest(), &header)?;
        check_size(need as u64, size)?;
        if let Some(hash) = hash.as_deref_mut() {
            hash.update(header);
        }
        let seed = array(&header, 48);
        let limbs = spec.limbs + spec.special_of(params);
        let mut digits = Vec::with_capacity(spec.digits_of(params));
        for digit in 0..spec.digits_of(params) {
            let mut a = Limbs::scratch(n, limbs, spare);
            let mut b = Limbs::scratch(n, limbs, spare);
            let hash = hash.as_deref_mut();
            let ((), read) = rayon::join(
                || EvalKey::fill_uniform_half(ctx, spec, &seed, digit, a.par_iter_mut()),
                || read_limbs(n, key_moduli(params, spec), from, hash, b.iter_mut()),
            );
            read?;
            digits.push(KeyDigit { b, a });
        }
        Ok(EvalKey {
            id: spec.id,
            limbs: spec.limbs,
            special: spec.special_of(params),
            seed,
            digits,
        })
    }

    /// SHA-256 of the canonical bytes.
    pub fn digest(&self, ctx: &Context) -> [u8; 32] {
        Sha256::digest(self.to_bytes(ctx)).into()
    }
}

#[cfg(test)]
mod tests;
