//! Accounts, tokens, devices, blobs and uploads.

use cipherhop_proto::{AccountId, DeviceId, Digest, Nonce, TokenId, UploadId};
use sqlx::{query, query_scalar};

use super::rows::{Columns, int, text, uuid};
use crate::domain::time::Timestamp;
use crate::domain::trust::{Device, DeviceState, Pace};
use crate::domain::view::BlobRole;
use crate::store::tx::TokenRow;
use crate::store::types::{BlobRecord, Identity, Result, Role, UploadRecord, UploadState};

type Db = super::Connection;

const DEVICE_STATES: [DeviceState; 5] = [
    DeviceState::New,
    DeviceState::Probation,
    DeviceState::Trusted,
    DeviceState::Quarantined,
    DeviceState::Banned,
];

pub(super) async fn account_by_name(db: &mut Db, name: &str) -> Result<Option<AccountId>> {
    let row = query("SELECT id FROM accounts WHERE name = $1")
        .bind(text(name))
        .fetch_optional(db)
        .await?;
    row.map(|row| Columns(&row).id("id")).transpose()
}

pub(super) async fn account_name(db: &mut Db, id: AccountId) -> Result<String> {
    let sql = "SELECT name FROM accounts WHERE id = $1";
    Ok(query_scalar(sql)
        .bind(uuid(id.as_bytes()))
        .fetch_one(db)
        .await?)
}

pub(super) async fn insert_account(
    db: &mut Db,
    id: AccountId,
    name: &str,
    now: Timestamp,
) -> Result<()> {
    let sql = "INSERT INTO accounts (id, name, created_us) VALUES ($1, $2, $3)";
    query(sql)
        .bind(uuid(id.as_bytes()))
        .bind(text(name))
        .bind(now.micros())
        .execute(db)
        .await?;
    Ok(())
}

pub(super) async fn token_by_hash(db: &mut Db, hash: Digest) -> Result<Option<TokenRow>> {
    let sql = "SELECT t.id, t.hash, t.role, t.account_id, a.name, t.device_id, t.chain_id,
        t.revoked_us
        FROM tokens t JOIN accounts a ON a.id = t.account_id WHERE t.hash = $1";
    let row = query(sql).bind(hash.to_vec()).fetch_optional(db).await?;
    let Some(row) = row else { return Ok(None) };
    let row = Columns(&row);
    let identity = Identity {
        token: row.id("id")?,
        role: row.named("role", &Role::ALL, Role::name)?,
        account: row.id("account_id")?,
        account_name: row.text("name")?,
        device: row.maybe_id("device_id")?,
        scope: row.maybe_id("chain_id")?,
    };
    let revoked = row.maybe_time("revoked_us")?.is_some();
    Ok(Some(TokenRow {
        hash: row.bytes("hash")?,
        identity,
        revoked,
    }))
}

pub(super) async fn insert_token(db: &mut Db, token: &TokenRow, now: Timestamp) -> Result<()> {
    let sql = "INSERT INTO tokens (id, hash, role, account_id, device_id, chain_id, created_us)
        VALUES ($1, $2, $3, $4, $5, $6, $7)";
    let who = &token.identity;
    query(sql)
        .bind(uuid(who.token.as_bytes()))
        .bind(token.hash.to_vec())
        .bind(who.role.name())
        .bind(uuid(who.account.as_bytes()))
        .bind(who.device.map(|id| uuid(id.as_bytes())))
        .bind(who.scope.map(|id| uuid(id.as_bytes())))
        .bind(now.micros())
        .execute(db)
        .await?;
    Ok(())
}

pub(super) async fn revoke_token(db: &mut Db, id: TokenId, now: Timestamp) -> Result<bool> {
    let sql = "UPDATE tokens SET revoked_us = COALESCE(revoked_us, $1) WHERE id = $2";
    let done = query(sql)
        .bind(now.micros())
        .bind(uuid(id.as_bytes()))
        .execute(db)
        .await?;
    Ok(done.rows_affected() > 0)
}

pub(super) async fn revoke_device_tokens(
    db: &mut Db,
    device: DeviceId,
    now: Timestamp,
) -> Result<()> {
    let sql = "UPDATE tokens SET revoked_us = COALESCE(revoked_us, $1) WHERE device_id = $2";
    query(sql)
        .bind(now.micros())
        .bind(uuid(device.as_bytes()))
        .execute(db)
        .await?;
    Ok(())
}

const DEVICES: &str = "SELECT d.*, a.name AS account_name
    FROM devices d JOIN accounts a ON a.id = d.account_id ORDER BY d.created_us, d.id";

fn device_of(row: &super::Row) -> Result<Device> {
    let row = Columns(row);
    Ok(Device {
        id: row.id("id")?,
        account: row.id("account_id")?,
        account_name: row.text("account_name")?,
        display_name: row.text("display_name")?,
        state: row.named("state", &DEVICE_STATES, DeviceState::name)?,
        consecutive_valid: row.short("consecutive_valid")?,
        consecutive_invalid: row.short("consecutive_invalid")?,
        proven: row.maybe_time("proven_us")?,
        pace: match (row.maybe_long("pace_permille")?, row.maybe_time("pace_us")?) {
            (Some(permille), Some(at)) => Some(Pace {
                permille: u32::try_from(permille).unwrap_or(u32::MAX),
                at,
            }),
            _ => None,
        },
        referee: row.flag("referee")?,
        note: row.text("note")?,
        created: row.time("created_us")?,
        last_seen: row.time("last_seen_us")?,
    })
}

pub(super) async fn device(db: &mut Db, id: DeviceId, lock: bool) -> Result<Option<Device>> {
    let sql = locking!(
        lock,
        "SELECT d.*, (SELECT name FROM accounts WHERE id = d.account_id) AS account_name
        FROM devices d WHERE d.id = $1"
    );
    let row = query(sql)
        .bind(uuid(id.as_bytes()))
        .fetch_optional(db)
        .await?;
    row.as_ref().map(device_of).transpose()
}

pub(super) async fn device_by_nonce(
    db: &mut Db,
    account: AccountId,
    nonce: Nonce,
) -> Result<Option<DeviceId>> {
    let sql = "SELECT id FROM devices WHERE account_id = $1 AND nonce = $2";
    let row = query(sql)
        .bind(uuid(account.as_bytes()))
        .bind(uuid(nonce.as_bytes()))
        .fetch_optional(db)
        .await?;
    row.map(|row| Columns(&row).id("id")).transpose()
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
        consecutive_invalid, note, created_us, last_seen_us, proven_us, pace_permille, pace_us,
        referee) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)";
    query(sql)
        .bind(uuid(device.id.as_bytes()))
        .bind(uuid(device.account.as_bytes()))
        .bind(uuid(nonce.as_bytes()))
        .bind(text(&device.display_name))
        .bind(device.state.name())
        .bind(int(device.consecutive_valid))
        .bind(int(device.consecutive_invalid))
        .bind(text(&device.note))
        .bind(device.created.micros())
        .bind(device.last_seen.micros())
        .bind(device.proven.map(|at| at.micros()))
        .bind(device.pace.map(|pace| int(pace.permille)))
        .bind(device.pace.map(|pace| pace.at.micros()))
        .bind(device.referee)
        .execute(db)
        .await?;
    Ok(())
}

pub(super) async fn update_device(db: &mut Db, device: &Device) -> Result<()> {
    let sql = "UPDATE devices SET state = $1, consecutive_valid = $2, consecutive_invalid = $3,
        note = $4, last_seen_us = $5, proven_us = $6, pace_permille = $7, pace_us = $8, referee = $9
        WHERE id = $10";
    query(sql)
        .bind(device.state.name())
        .bind(int(device.consecutive_valid))
        .bind(int(device.consecutive_invalid))
        .bind(text(&device.note))
        .bind(device.last_seen.micros())
        .bind(device.proven.map(|at| at.micros()))
        .bind(device.pace.map(|pace| int(pace.permille)))
        .bind(device.pace.map(|pace| pace.at.micros()))
        .bind(device.referee)
        .bind(uuid(device.id.as_bytes()))
        .execute(db)
        .await?;
    Ok(())
}

pub(super) fn blob_of(row: &super::Row) -> Result<BlobRecord> {
    let row = Columns(row);
    Ok(BlobRecord {
        digest: row.bytes("digest")?,
        size: row.long("size")?,
        completed: row.time("completed_us")?,
    })
}

pub(super) async fn blob(db: &mut Db, digest: Digest) -> Result<Option<BlobRecord>> {
    let sql =
        "SELECT digest, size, completed_us FROM blobs WHERE digest = $1 AND state = 'Complete'";
    let row = query(sql).bind(digest.to_vec()).fetch_optional(db).await?;
    row.as_ref().map(blob_of).transpose()
}

pub(super) async fn blobs(
    db: &mut Db,
    after: Option<Digest>,
    limit: u32,
) -> Result<Vec<BlobRecord>> {
    let sql = "SELECT digest, size, completed_us FROM blobs
         WHERE digest > $1 AND state = 'Complete' ORDER BY digest LIMIT $2";
    let after = after.map_or_else(Vec::new, Digest::to_vec);
    let rows = query(sql)
        .bind(after)
        .bind(i64::from(limit))
        .fetch_all(db)
        .await?;
    rows.iter().map(blob_of).collect()
}

pub(super) async fn insert_blob(db: &mut Db, blob: &BlobRecord) -> Result<()> {
    let sql = "INSERT INTO blobs (digest, size, completed_us) VALUES ($1, $2, $3)";
    query(sql)
        .bind(blob.digest.to_vec())
        .bind(int(blob.size))
        .bind(blob.completed.micros())
        .execute(db)
        .await?;
    Ok(())
}

fn upload_of_row(row: &super::Row) -> Result<UploadRecord> {
    let row = Columns(row);
    let states = [UploadState::Reserved, UploadState::Uploading];
    Ok(UploadRecord {
        id: row.id("id")?,
        digest: row.bytes("digest")?,
        size: row.long("size")?,
        role: row.named("role", &BlobRole::ALL, BlobRole::name)?,
        account: row.id("account_id")?,
        attempt: row.maybe_id("attempt_id")?,
        committed: row.long("committed")?,
        state: row.named("state", &states, UploadState::name)?,
        updated: row.time("updated_us")?,
    })
}

pub(super) async fn upload(db: &mut Db, id: UploadId, lock: bool) -> Result<Option<UploadRecord>> {
    let sql = locking!(lock, "SELECT * FROM uploads WHERE id = $1");
    let row = query(sql)
        .bind(uuid(id.as_bytes()))
        .fetch_optional(db)
        .await?;
    row.as_ref().map(upload_of_row).transpose()
}

pub(super) async fn upload_of(
    db: &mut Db,
    digest: Digest,
    account: AccountId,
    lock: bool,
) -> Result<Option<UploadRecord>> {
    let sql = locking!(
        lock,
        "SELECT * FROM uploads WHERE digest = $1 AND account_id = $2"
    );
    let row = query(sql)
        .bind(digest.to_vec())
        .bind(uuid(account.as_bytes()))
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
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
        ON CONFLICT (id) DO UPDATE SET role = excluded.role, attempt_id = excluded.attempt_id,
            committed = excluded.committed, state = excluded.state,
            updated_us = excluded.updated_us";
    query(sql)
        .bind(uuid(upload.id.as_bytes()))
        .bind(upload.digest.to_vec())
        .bind(int(upload.size))
        .bind(upload.role.name())
        .bind(uuid(upload.account.as_bytes()))
        .bind(upload.attempt.map(|id| uuid(id.as_bytes())))
        .bind(int(upload.committed))
        .bind(upload.state.name())
        .bind(upload.updated.micros())
        .execute(db)
        .await?;
    Ok(())
}

pub(super) async fn delete_uploads(db: &mut Db, digest: Digest) -> Result<()> {
    // An upload that another writer has is ended by that one: it waits for this one's blob and would wait for ever.
    let free = query(skip_locked!("SELECT id FROM uploads WHERE digest = $1"))
        .bind(digest.to_vec())
        .fetch_all(&mut *db)
        .await?;
    for row in &free {
        let id: UploadId = Columns(row).id("id")?;
        query("DELETE FROM uploads WHERE id = $1")
            .bind(uuid(id.as_bytes()))
            .execute(&mut *db)
            .await?;
    }
    Ok(())
}
