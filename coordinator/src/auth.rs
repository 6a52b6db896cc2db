//! Bearer tokens: who calls, in which role.
//!
//! A token is `cipherhop_ROLE_` and 64 hexadecimal digits of operating-system randomness. Only its SHA-256 is stored,
//! so a copy of the database lets nobody in (the look-up goes by that hash, whose timing says nothing about the token), and the prefix lets a person (or a secret scanner) see what it is.

use std::fmt;
use std::str::FromStr;

use cipherhop_proto::Digest;
use rand::TryRng;
use rand::rngs::SysRng;

use crate::store::Role;

/// Lower-case name of a role, as in a token's prefix.
pub const fn role_name(role: Role) -> &'static str {
    match role {
        Role::Invite => "invite",
        Role::Volunteer => "volunteer",
        Role::Owner => "owner",
        Role::Admin => "admin",
        Role::Observer => "observer",
    }
}

/// A secret token. It has no `Display`, and `Debug` hides it, so it cannot reach a log by accident.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    text: String,
    role: Role,
}

/// Text that is no token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a cipherhop token")]
pub struct ParseTokenError;

/// The operating system gave no random bytes.
#[derive(Debug, thiserror::Error)]
#[error("the operating system gave no random bytes")]
pub struct NoRandomness;

impl Token {
    /// A fresh token of 256 random bits.
    pub fn generate(role: Role) -> Result<Token, NoRandomness> {
        let mut secret = [0; 32];
        SysRng
            .try_fill_bytes(&mut secret)
            .map_err(|_| NoRandomness)?;
        Ok(Token {
            text: format!("cipherhop_{}_{}", role_name(role), hex::encode(secret)),
            role,
        })
    }

    /// The role its prefix names; the stored role is what counts.
    pub fn role(&self) -> Role {
        self.role
    }

    /// The token itself, to hand to its user.
    pub fn reveal(&self) -> &str {
        &self.text
    }

    /// What is stored and looked up: SHA-256 of the text.
    pub fn hash(&self) -> Digest {
        Digest::of(self.text.as_bytes())
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({}, hidden)", role_name(self.role))
    }
}

impl FromStr for Token {
    type Err = ParseTokenError;

    fn from_str(text: &str) -> Result<Token, ParseTokenError> {
        let rest = text.strip_prefix("cipherhop_").ok_or(ParseTokenError)?;
        let (role, secret) = rest.split_once('_').ok_or(ParseTokenError)?;
        let role = Role::ALL
            .into_iter()
            .find(|r| role_name(*r) == role)
            .ok_or(ParseTokenError)?;
        let canonical = secret.len() == 64
            && secret
                .bytes()
                .all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        canonical
            .then(|| Token {
                text: text.to_owned(),
                role,
            })
            .ok_or(ParseTokenError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_differ_parse_back_and_name_their_role() {
        for role in Role::ALL {
            let (a, b) = (
                Token::generate(role).unwrap(),
                Token::generate(role).unwrap(),
            );
            assert!(a != b);
            assert_eq!(a.reveal().parse::<Token>().unwrap(), a);
            assert_eq!(a.role(), role);
            assert_ne!(a.hash(), b.hash());
        }
    }

    #[test]
    fn debug_output_hides_the_secret() {
        let token = Token::generate(Role::Admin).unwrap();
        let secret = token.reveal().rsplit('_').next().unwrap();
        assert!(!format!("{token:?}").contains(secret));
    }

    #[test]
    fn other_text_is_refused() {
        let good = Token::generate(Role::Owner).unwrap().reveal().to_owned();
        let upper = good.replace("cipherhop_owner_", "").to_uppercase();
        for bad in [
            "",
            "x",
            "cipherhop_owner_",
            "cipherhop_root_00",
            &good[1..],
            &good[..good.len() - 1],
        ] {
            assert!(bad.parse::<Token>().is_err(), "{bad}");
        }
        assert!(format!("{good}0").parse::<Token>().is_err());
        assert!(
            format!("cipherhop_owner_{upper}g")
                .parse::<Token>()
                .is_err()
        );
    }
}
