-- Device keys, signatures of results, tokens for one chain, and what operators did.

-- The one chain a token is for; NULL: every chain. No reference: a key holder's token may come before its chain.
ALTER TABLE tokens ADD COLUMN chain_id BLOB CHECK (chain_id IS NULL OR length(chain_id) = 16);

CREATE TABLE device_keys (
    device_id  BLOB PRIMARY KEY REFERENCES devices (id),
    public_key BLOB NOT NULL UNIQUE CHECK (length(public_key) = 32),
    created_us INTEGER NOT NULL
) STRICT;

-- The signed statement of the attempt's claim: chain, generation, hop and attempt are the attempt's own.
CREATE TABLE attempt_signatures (
    attempt_id BLOB PRIMARY KEY REFERENCES attempts (id),
    public_key BLOB NOT NULL CHECK (length(public_key) = 32),
    output     BLOB NOT NULL CHECK (length(output) = 32),
    trace_root BLOB NOT NULL CHECK (length(trace_root) = 32),
    signature  BLOB NOT NULL CHECK (length(signature) = 64),
    signed_us  INTEGER NOT NULL
) STRICT;

CREATE TABLE audit (
    number     INTEGER PRIMARY KEY AUTOINCREMENT,
    at_us      INTEGER NOT NULL,
    token_id   BLOB NOT NULL CHECK (length(token_id) = 16),
    account    TEXT NOT NULL,
    action     TEXT NOT NULL,
    target     TEXT NOT NULL,
    detail     TEXT NOT NULL,
    outcome    TEXT
) STRICT;

-- Written before the action; the outcome is filled in once, afterwards.
CREATE TRIGGER audit_is_written_once BEFORE UPDATE ON audit
WHEN OLD.outcome IS NOT NULL OR NEW.outcome IS NULL OR NEW.number <> OLD.number
    OR NEW.at_us <> OLD.at_us OR NEW.token_id <> OLD.token_id OR NEW.account <> OLD.account
    OR NEW.action <> OLD.action OR NEW.target <> OLD.target OR NEW.detail <> OLD.detail
BEGIN
    SELECT RAISE(ABORT, 'the audit log is append-only');
END;
CREATE TRIGGER audit_rows_never_go BEFORE DELETE ON audit
BEGIN
    SELECT RAISE(ABORT, 'the audit log is append-only');
END;
