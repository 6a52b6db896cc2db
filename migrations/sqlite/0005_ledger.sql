-- Rows of the archive are signed. Rows from before have no signature.
ALTER TABLE archive ADD COLUMN signer BLOB CHECK (signer IS NULL OR length(signer) = 32);
ALTER TABLE archive ADD COLUMN signature BLOB CHECK (signature IS NULL OR length(signature) = 64);

-- Keys that coordinators of this database signed or sign with; the newest is the one in use.
CREATE TABLE ledger_keys (
    number     INTEGER PRIMARY KEY CHECK (number >= 0),
    public_key BLOB NOT NULL CHECK (length(public_key) = 32),
    since_us   INTEGER NOT NULL
) STRICT;
