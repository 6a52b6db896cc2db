//! Accounts, tokens, devices, blobs and uploads.

use cipherhop_proto::{AccountId, DeviceId, Digest, Nonce, TokenId, UploadId};
use sqlx::sqlite::SqliteRow;
use sqlx::{SqliteConnection, query, query_scalar};

use super::rows::{Columns, int};
use crate::domain::time::Timestamp;
use crate::domain::trust::{Device, DeviceState};
use crate::domain::view::BlobRole;
use crate::store::tx::TokenRow;
use crate::store::types::{BlobRecord, Identity, Result, Role, UploadRecord, UploadState};

type Db = SqliteConnection;

const ROLES: [Role; 5] = [
    Role::Invite,
    Role::Volunteer,
    Role::Owner,
    Role::Admin,
    Role::Observer,
];
const DEVICE_STATES: [DeviceState; 5] = [
    DeviceState::New,
    DeviceState::Probation,
    DeviceState::Trusted,
    DeviceState::Quarantined,
    DeviceState::Banned,
];

pub(super) async fn account_by_name(db: &mut Db, name: &str) -> Result<Option<AccountId>> {
    let row = query("SELECT id FROM accounts WHERE name = ?")
        .bind(name)
        .fetch_optional(db)
        .await?;
    row.map(|row| Columns(&row).bytes("id")).transpose()
}

pub(super) async fn account_name(db: &mut Db, id: AccountId) -> Result<String> {
    let sql = "SELECT name FROM accounts WHERE id = ?";
    Ok(query_scalar(sql).bind(id.to_vec()).fetch_one(db).await?)
}

pub(super) async fn insert_account(
    db: &mut Db,
    id: AccountId,
    name: &str,
    now: Timestamp,
) -> Result<()> {
    let sql = "INSERT INTO accounts (id, name, created_us) VALUES (?, ?, ?)";
    query(sql)
        .bind(id.to_vec())
        .bind(name)
        .bind(now.micros())
        .execute(db)
        .await?;
    Ok(())
}

pub(super) async fn token_by_hash(db: &mut Db, hash: Digest) -> Result<Option<TokenRow>> {
    let sql = "SELECT t.id, t.hash, t.role, t.account_id, a.name, t.device_id, t.revoked_us
        FROM tokens t JOIN accounts a ON a.id = t.account_id WHERE t.hash = ?";
    let row = query(sql).bind(hash.to_vec()).fetch_optional(db).await?;
    let Some(row) = row else { return Ok(None) };
    let row = Columns(&row);
    let identity = Identity {
        token: row.bytes("id")?,
        role: row.named("role", &ROLES, Role::name)?,
        account: row.bytes("account_id")?,
        account_name: row.text("name")?,
        device: row.maybe_bytes("device_id")?,
    };
    let revoked = row.maybe_time("revoked_us")?.is_some();
    Ok(Some(TokenRow {
        hash: row.bytes("hash")?,
        identity,
        revoked,
    }))
}

pub(super) async fn insert_token(db: &mut Db, token: &TokenRow, now: Timestamp) -> Result<()> {
    let sql = "INSERT INTO tokens (id, hash, role, account_id, device_id, created_us)
        VALUES (?, ?, ?, ?, ?, ?)";
    let who = &token.identity;
    query(sql)
        .bind(who.token.to_vec())
        .bind(token.hash.to_vec())
        .bind(who.role.name())
        .bind(who.account.to_vec())
        .bind(who.device.map(DeviceId::to_vec))
        .bind(now.micros())
        .execute(db)
        .await?;
    Ok(())
}

pub(super) async fn revoke_token(db: &mut Db, id: TokenId, now: Timestamp) -> Result<bool> {
    let sql = "UPDATE tokens SET revoked_us = COALESCE(revoked_us, ?) WHERE id = ?";
    let done = query(sql)
        .bind(now.micros())
        .bind(id.to_vec())
        .execute(db)
        .await?;
    Ok(done.rows_affected() > 0)
}

pub(super) async fn revoke_device_tokens(
    db: &mut Db,
    device: DeviceId,
    now: Timestamp,
) -> Result<()> {
    let sql = "UPDATE tokens SET revoked_us = COALESCE(revoked_us, ?) WHERE device_id = ?";
    query(sql)
        .bind(now.micros())
        .bind(device.to_vec())
        .execute(db)
        .await?;
    Ok(())
}

const DEVICE: &str = "SELECT d.*, a.name AS account_name
    FROM devices d JOIN accounts a ON a.id = d.account_id WHERE d.id = ?";
const DEVICES: &str = "SELECT d.*, a.name AS account_name
    FROM devices d JOIN accounts a ON a.id = d.account_id ORDER BY d.created_us, d.id";

fn device_of(row: &SqliteRow) -> Result<Device> {
    let row = Columns(row);
    Ok(Device {
        id: row.bytes("id")?,
        account: row.bytes("account_id")?,
        account_name: row.text("account_name")?,
        display_name: row.text("display_name")?,
        state: row.named("state", &DEVICE_STATES, DeviceState::name)?,
        consecutive_valid: row.short("consecutive_valid")?,
        consecutive_invalid: row.short("consecutive_invalid")?,
        note: row.text("note")?,
        created: row.time("created_us")?,
        last_seen: row.time("last_seen_us")?,
    })
}

pub(super) async fn device(db: &mut Db, id: DeviceId) -> Result<Option<Device>> {
    let row = query(DEVICE).bind(id.to_vec()).fetch_optional(db).await?;
    row.as_ref().map(device_of).transpose()
}

pub(super) async fn device_by_nonce(
    db: &mut Db,
    account: AccountId,
    nonce: Nonce,
) -> Result<Option<DeviceId>> {
    let sql = "SELECT id FROM devices WHERE account_id = ? AND nonce = ?";
    let row = query(sql)
        .bind(account.to_vec())
        .bind(nonce.to_vec())
        .fetch_optional(db)
        .await?;
    row.map(|row| Columns(&row).bytes("id")).transpose()
}

pub(super) async fn devices(db: &mut Db) -> Result<Vec<Device>> {
    query(DEVICES)
        .fetch_all(db)
        .await?
        .iter()
        .map(device_of)
        .collect()
}

pub(super) async fn insert_device(db: &mut Db, device: &Device, nonce: Nonce) -> Result<()> {
    let sql = "INSERT INTO devices (id, account_id, nonce, display_name, state, consecutive_valid,
        consecutive_invalid, note, created_us, last_seen_us) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
    query(sql)
        .bind(device.id.to_vec())
        .bind(device.account.to_vec())
        .bind(nonce.to_vec())
        .bind(&device.display_name)
        .bind(device.state.name())
        .bind(device.consecutive_valid)
        .bind(device.consecutive_invalid)
        .bind(&device.note)
        .bind(device.created.micros())
        .bind(device.last_seen.micros())
        .execute(db)
        .await?;
    Ok(())
}

pub(super) async fn update_device(db: &mut Db, device: &Device) -> Result<()> {
    let sql = "UPDATE devices SET state = ?, consecutive_valid = ?, consecutive_invalid = ?,
        note = ?, last_seen_us = ? WHERE id = ?";
    query(sql)
        .bind(device.state.name())
        .bind(device.consecutive_valid)
        .bind(device.consecutive_invalid)
        .bind(&device.note)
        .bind(device.last_seen.micros())
        .bind(device.id.to_vec())
        .execute(db)
        .await?;
    Ok(())
}

pub(super) fn blob_of(row: &SqliteRow) -> Result<BlobRecord> {
    let row = Columns(row);
    Ok(BlobRecord {
        digest: row.bytes("digest")?,
        size: row.long("size")?,
        completed: row.time("completed_us")?,
    })
}

pub(super) async fn blob(db: &mut Db, digest: Digest) -> Result<Option<BlobRecord>> {
    let sql =
        "SELECT digest, size, completed_us FROM blobs WHERE digest = ? AND state = 'Complete'";
    let row = query(sql).bind(digest.to_vec()).fetch_optional(db).await?;
    row.as_ref().map(blob_of).transpose()
}

pub(super) async fn insert_blob(db: &mut Db, blob: &BlobRecord) -> Result<()> {
    let sql = "INSERT INTO blobs (digest, size, completed_us) VALUES (?, ?, ?)";
    query(sql)
        .bind(blob.digest.to_vec())
        .bind(int(blob.size))
        .bind(blob.completed.micros())
        .execute(db)
        .await?;
    Ok(())
}

fn upload_of_row(row: &SqliteRow) -> Result<UploadRecord> {
    let row = Columns(row);
    let states = [UploadState::Reserved, UploadState::Uploading];
    Ok(UploadRecord {
        id: row.bytes("id")?,
        digest: row.bytes("digest")?,
        size: row.long("size")?,
        role: row.named("role", &BlobRole::ALL, BlobRole::name)?,
        account: row.bytes("account_id")?,
        attempt: row.maybe_bytes("attempt_id")?,
        committed: row.long("committed")?,
        state: row.named("state", &states, UploadState::name)?,
        updated: row.time("updated_us")?,
    })
}

pub(super) async fn upload(db: &mut Db, id: UploadId) -> Result<Option<UploadRecord>> {
    let sql = "SELECT * FROM uploads WHERE id = ?";
    let row = query(sql).bind(id.to_vec()).fetch_optional(db).await?;
    row.as_ref().map(upload_of_row).transpose()
}

pub(super) async fn upload_of(
    db: &mut Db,
    digest: Digest,
    account: AccountId,
) -> Result<Option<UploadRecord>> {
    let sql = "SELECT * FROM uploads WHERE digest = ? AND account_id = ?";
    let row = query(sql)
        .bind(digest.to_vec())
        .bind(account.to_vec())
        .fetch_optional(db)
        .await?;
    row.as_ref().map(upload_of_row).transpose()
}

pub(super) async fn uploads(db: &mut Db) -> Result<Vec<UploadRecord>> {
    let sql = "SELECT * FROM uploads ORDER BY id";
    query(sql)
        .fetch_all(db)
        .await?
        .iter()
        .map(upload_of_row)
        .collect()
}

pub(super) async fn put_upload(db: &mut Db, upload: &UploadRecord) -> Result<()> {
    let sql = "INSERT INTO uploads (id, digest, size, role, account_id, attempt_id, committed,
            state, updated_us)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
        ON CONFLICT (id) DO UPDATE SET role = excluded.role, attempt_id = excluded.attempt_id,
            committed = excluded.committed, state = excluded.state,
            updated_us = excluded.updated_us";
    query(sql)
        .bind(upload.id.to_vec())
        .bind(upload.digest.to_vec())
        .bind(int(upload.size))
        .bind(upload.role.name())
        .bind(upload.account.to_vec())
        .bind(upload.attempt.map(Vec::from))
        .bind(int(upload.committed))
        .bind(upload.state.name())
        .bind(upload.updated.micros())
        .execute(db)
        .await?;
    Ok(())
}

pub(super) async fn delete_uploads(db: &mut Db, digest: Digest) -> Result<()> {
    query("DELETE FROM uploads WHERE digest = ?")
        .bind(digest.to_vec())
        .execute(db)
        .await?;
    Ok(())
}
