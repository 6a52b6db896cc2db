//! Ciphertexts and evaluation keys.

use std::sync::{Arc, LazyLock};

use cipherhop_ckks::{
    Ciphertext, Context, EvalKey, Params, SpareBlocks, ciphertext_size, inspect, inspect_key,
    peek_key,
};

static PARAMS: LazyLock<Params> = LazyLock::new(|| {
    Params::by_name("n10-INSECURE").unwrap_or_else(|e| panic!("the smallest set: {e}"))
});
static CONTEXT: LazyLock<Arc<Context>> = LazyLock::new(|| {
    Context::new(PARAMS.clone()).unwrap_or_else(|e| panic!("the smallest set: {e}"))
});

pub fn prepare() {
    LazyLock::force(&CONTEXT);
}

/// The input itself where its first byte is even. Otherwise a header and a body that is repeated to the size of a whole
/// value, so that a short input reaches the residues; the parameter digest is filled in.
fn stretched(
    bytes: &[u8],
    header: usize,
    digest_at: usize,
    size: impl Fn(&[u8]) -> usize,
) -> Vec<u8> {
    let Some((mode, rest)) = bytes.split_first() else {
        return Vec::new();
    };
    if mode % 2 == 0 || rest.len() < header {
        return rest.to_vec();
    }
    let mut head = rest[..header].to_vec();
    head[digest_at..digest_at + 32].copy_from_slice(&PARAMS.digest());
    let size = size(&head) + usize::from(mode / 2 % 4 == 3);
    let mut whole = Vec::with_capacity(size.max(header));
    whole.append(&mut head);
    let body = if rest.len() > header {
        &rest[header..]
    } else {
        &[0]
    };
    whole.extend(body.iter().cycle().take(size.saturating_sub(header)));
    whole
}

pub fn ciphertext(bytes: &[u8]) -> usize {
    let bytes = stretched(bytes, 44, 12, |head| {
        let level = usize::from(head[8]);
        if level <= PARAMS.max_level() {
            ciphertext_size(&PARAMS, level)
        } else {
            44
        }
    });
    let inspected = inspect(&PARAMS, &bytes);
    let parsed = Ciphertext::from_bytes(&CONTEXT, &bytes);
    assert_eq!(
        inspected.is_ok(),
        parsed.is_ok(),
        "two readers of one form disagree"
    );
    if let (Ok(info), Ok(value)) = (inspected, parsed) {
        assert_eq!(info.size, bytes.len() as u64);
        assert!(
            value.to_bytes(&CONTEXT) == bytes,
            "two forms of one ciphertext"
        );
    }
    bytes.len()
}

pub fn eval_key(bytes: &[u8]) -> usize {
    let bytes = stretched(bytes, 80, 16, |head| {
        peek_key(&PARAMS, head).map_or(80, |(_, size)| usize::try_from(size).unwrap_or(80))
    });
    let inspected = inspect_key(&PARAMS, &bytes);
    let parsed = EvalKey::from_bytes(&CONTEXT, &bytes);
    assert_eq!(
        inspected.is_ok(),
        parsed.is_ok(),
        "two readers of one form disagree"
    );
    if let Ok(key) = parsed {
        assert!(key.to_bytes(&CONTEXT) == bytes, "two forms of one key");
    }
    // A file whose length is not what the header says.
    let mut spare = SpareBlocks::default();
    let size = bytes.len() as u64;
    let short = bytes.len() / 2;
    assert!(EvalKey::read(&CONTEXT, &mut &bytes[..short], size, None, &mut spare).is_err());
    bytes.len()
}
