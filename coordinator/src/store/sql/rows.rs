//! Between columns and domain types. A value no version of this program writes is a damaged row.

use std::borrow::Cow;
use std::str::FromStr;
use std::time::Duration;

use cipherhop_proto::{Digest, Reason};
use sqlx::Row as _;
use sqlx::types::Uuid;

use super::Row;

use crate::domain::time::Timestamp;
use crate::store::types::{Result, StoreError};

/// Reads columns of one row by name.
#[derive(Clone, Copy)]
pub(super) struct Columns<'r>(pub &'r Row);

pub(super) fn damaged(column: &str, value: impl std::fmt::Display) -> StoreError {
    StoreError::Damaged(format!("{column} is {value}"))
}

impl<'r> Columns<'r> {
    /// Sixteen bytes as an identifier.
    pub fn id<T: for<'a> TryFrom<&'a [u8]>>(self, column: &str) -> Result<T> {
        let id: Uuid = self.0.try_get(column)?;
        T::try_from(id.as_bytes()).map_err(|_| damaged(column, id))
    }

    pub fn maybe_id<T: for<'a> TryFrom<&'a [u8]>>(self, column: &str) -> Result<Option<T>> {
        let id: Option<Uuid> = self.0.try_get(column)?;
        let Some(id) = id else { return Ok(None) };
        let wrong = |_| damaged(column, id);
        T::try_from(id.as_bytes()).map(Some).map_err(wrong)
    }

    /// Thirty-two bytes as a digest.
    pub fn bytes<T: TryFrom<&'r [u8]>>(self, column: &str) -> Result<T> {
        let bytes: &[u8] = self.0.try_get(column)?;
        T::try_from(bytes).map_err(|_| damaged(column, format!("{} bytes", bytes.len())))
    }

    pub fn maybe_bytes<T: TryFrom<&'r [u8]>>(self, column: &str) -> Result<Option<T>> {
        let bytes: Option<&[u8]> = self.0.try_get(column)?;
        let Some(bytes) = bytes else { return Ok(None) };
        let wrong = |_| damaged(column, format!("{} bytes", bytes.len()));
        T::try_from(bytes).map(Some).map_err(wrong)
    }

    pub fn text(self, column: &str) -> Result<String> {
        Ok(self.0.try_get(column)?)
    }

    pub fn maybe_text(self, column: &str) -> Result<Option<String>> {
        Ok(self.0.try_get(column)?)
    }

    /// A value out of a fixed list, by its name.
    pub fn named<T: Copy>(self, column: &str, all: &[T], name: fn(T) -> &'static str) -> Result<T> {
        let text: &str = self.0.try_get(column)?;
        let found = all.iter().find(|value| name(**value) == text);
        found.copied().ok_or_else(|| damaged(column, text))
    }

    pub fn maybe_reason(self, column: &str) -> Result<Option<Reason>> {
        let Some(text) = self.maybe_text(column)? else {
            return Ok(None);
        };
        Reason::from_str(&text)
            .map(Some)
            .map_err(|_| damaged(column, text))
    }

    pub fn flag(self, column: &str) -> Result<bool> {
        Ok(self.0.try_get(column)?)
    }

    pub fn long(self, column: &str) -> Result<u64> {
        let value: i64 = self.0.try_get(column)?;
        u64::try_from(value).map_err(|_| damaged(column, value))
    }

    pub fn maybe_long(self, column: &str) -> Result<Option<u64>> {
        let Some(value): Option<i64> = self.0.try_get(column)? else {
            return Ok(None);
        };
        u64::try_from(value)
            .map(Some)
            .map_err(|_| damaged(column, value))
    }

    pub fn short(self, column: &str) -> Result<u32> {
        let value: i64 = self.0.try_get(column)?;
        u32::try_from(value).map_err(|_| damaged(column, value))
    }

    pub fn real(self, column: &str) -> Result<f64> {
        Ok(self.0.try_get(column)?)
    }

    pub fn time(self, column: &str) -> Result<Timestamp> {
        Ok(Timestamp::from_micros(self.0.try_get(column)?))
    }

    pub fn maybe_time(self, column: &str) -> Result<Option<Timestamp>> {
        let micros: Option<i64> = self.0.try_get(column)?;
        Ok(micros.map(Timestamp::from_micros))
    }

    pub fn duration(self, column: &str) -> Result<Duration> {
        Ok(Duration::from_micros(self.long(column)?))
    }
}

/// Sixteen bytes as both backends take them.
pub(super) fn uuid(bytes: &[u8; 16]) -> Uuid {
    Uuid::from_bytes(*bytes)
}

/// Text from outside: PostgreSQL takes no NUL, so both backends keep a replacement character.
pub(super) fn text(text: &str) -> Cow<'_, str> {
    match text.contains('\0') {
        true => Cow::Owned(text.replace('\0', "\u{FFFD}")),
        false => Cow::Borrowed(text),
    }
}

/// Unsigned numbers as SQL's signed ones; sizes and times beyond i64 do not occur and saturate.
pub(super) fn int(value: impl Into<u64>) -> i64 {
    i64::try_from(value.into()).unwrap_or(i64::MAX)
}

pub(super) fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

pub(super) fn maybe_digest(digest: Option<Digest>) -> Option<Vec<u8>> {
    digest.map(Digest::to_vec)
}
