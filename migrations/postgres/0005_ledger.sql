-- Rows of the archive are signed. Rows from before have no signature.
ALTER TABLE archive ADD COLUMN signer BYTEA CHECK (signer IS NULL OR octet_length(signer) = 32);
ALTER TABLE archive ADD COLUMN signature BYTEA CHECK (signature IS NULL OR octet_length(signature) = 64);

-- Keys that coordinators of this database signed or sign with; the newest is the one in use.
CREATE TABLE ledger_keys (
    number     BIGINT PRIMARY KEY CHECK (number >= 0),
    public_key BYTEA NOT NULL CHECK (octet_length(public_key) = 32),
    since_us   BIGINT NOT NULL
);
