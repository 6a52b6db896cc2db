//! Short texts: configuration, addresses, tokens, names, ranges, manifests.

use cipherhop_ckks::{Isa, KeyId};
use cipherhop_coordinator::auth::Token;
use cipherhop_coordinator::config::Config;
use cipherhop_coordinator::database::DatabaseUrl;
use cipherhop_hop::hexfloat;
use cipherhop_proto::client::{BearerToken, ConnectOptions, Connection};
use cipherhop_proto::signing::{DeviceKey, PublicKey};
use cipherhop_proto::{ChainId, Digest, Reason, manifest};
use cipherhop_worker::range::HopRange;
use cipherhop_worker::units::parse_bytes;

use crate::scratch::{RUNTIME, place};

fn config(bytes: &[u8]) {
    let path = place("config.toml", bytes);
    if let Ok(config) = Config::load(Some(&path)) {
        // What `config check` prints. The address in it is without its password and may not load again.
        toml::to_string(&config).unwrap_or_else(|e| panic!("printed: {e}"));
        let _ = config.leases.policy(2);
    }
}

fn connect(text: &str) {
    let _inside = RUNTIME.enter();
    let (url, token) = text.split_once('\n').unwrap_or((text, ""));
    for allow_plaintext in [false, true] {
        // https:// would read the system's certificates each time.
        let url = url.replace("https", "http");
        let _ = Connection::lazy(&ConnectOptions {
            url,
            token: Some(BearerToken::new(token)),
            ca: None,
            allow_plaintext,
        });
    }
}

/// The first byte says what the rest is.
pub fn text(bytes: &[u8]) -> usize {
    let Some((kind, rest)) = bytes.split_first() else {
        return bytes.len();
    };
    if *kind == b'C' {
        config(rest);
        return bytes.len();
    }
    let Ok(text) = std::str::from_utf8(rest) else {
        let _ = PublicKey::from_slice(rest);
        return bytes.len();
    };
    match kind {
        b'U' => connect(text),
        b'D' => {
            if let Ok(url) = text.parse::<DatabaseUrl>() {
                let _ = (url.to_string(), format!("{url:?}"));
            }
        }
        b'M' => {
            if let Ok(digests) = manifest::parse(text) {
                let again = manifest::format(digests.clone());
                assert_eq!(manifest::parse(&again), Ok(digests));
            }
        }
        b'F' => {
            if let Some(number) = hexfloat::parse(text) {
                let again = hexfloat::parse(&hexfloat::format(number));
                assert_eq!(again.map(f64::to_bits), Some(number.to_bits()));
            }
        }
        _ => short(text),
    }
    bytes.len()
}

/// Texts that say themselves what they are.
fn short(text: &str) {
    let _ = text.parse::<Token>();
    let _ = text.parse::<Reason>();
    let _ = text.parse::<Isa>();
    let _ = text.parse::<DeviceKey>();
    let _ = parse_bytes(text);
    if let Ok(id) = text.parse::<KeyId>() {
        assert_eq!(id.to_string().parse::<KeyId>().ok(), Some(id));
    }
    if let Ok(range) = text.parse::<HopRange>() {
        assert_eq!(range.to_string().parse(), Ok(range));
    }
    if let Ok(digest) = text.parse::<Digest>() {
        assert_eq!(digest.to_string().parse(), Ok(digest));
    }
    if let Ok(id) = text.parse::<ChainId>() {
        assert_eq!(id.to_string().parse(), Ok(id));
    }
}
