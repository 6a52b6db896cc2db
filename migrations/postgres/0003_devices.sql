-- Device keys, signatures of results, tokens for one chain, and what operators did.

-- The one chain a token is for; NULL: every chain. No reference: a key holder's token may come before its chain.
ALTER TABLE tokens ADD COLUMN chain_id UUID;

CREATE TABLE device_keys (
    device_id  UUID PRIMARY KEY REFERENCES devices (id),
    public_key BYTEA NOT NULL UNIQUE CHECK (octet_length(public_key) = 32),
    created_us BIGINT NOT NULL
);

-- The signed statement of the attempt's claim: chain, generation, hop and attempt are the attempt's own.
CREATE TABLE attempt_signatures (
    attempt_id UUID PRIMARY KEY REFERENCES attempts (id),
    public_key BYTEA NOT NULL CHECK (octet_length(public_key) = 32),
    output     BYTEA NOT NULL CHECK (octet_length(output) = 32),
    trace_root BYTEA NOT NULL CHECK (octet_length(trace_root) = 32),
    signature  BYTEA NOT NULL CHECK (octet_length(signature) = 64),
    signed_us  BIGINT NOT NULL
);

CREATE TABLE audit (
    number     BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at_us      BIGINT NOT NULL,
    token_id   UUID NOT NULL,
    account    TEXT NOT NULL,
    action     TEXT NOT NULL,
    target     TEXT NOT NULL,
    detail     TEXT NOT NULL,
    outcome    TEXT
);

-- Written before the action; the outcome is filled in once, afterwards.
CREATE TRIGGER audit_is_written_once BEFORE UPDATE ON audit FOR EACH ROW
WHEN (OLD.outcome IS NOT NULL OR NEW.outcome IS NULL OR NEW.number <> OLD.number
    OR NEW.at_us <> OLD.at_us OR NEW.token_id <> OLD.token_id OR NEW.account <> OLD.account
    OR NEW.action <> OLD.action OR NEW.target <> OLD.target OR NEW.detail <> OLD.detail)
EXECUTE FUNCTION refuse_change('the audit log is append-only');
CREATE TRIGGER audit_rows_never_go BEFORE DELETE ON audit FOR EACH ROW
EXECUTE FUNCTION refuse_change('the audit log is append-only');
