-- The same column forms as in the SQLite schema: ids and nonces are 16 bytes (uuid), digests 32 bytes, times
-- integer microseconds since the Unix epoch, durations integer microseconds. Foreign keys to blobs keep I3: no row
-- refers to a blob that is not durable.

CREATE TABLE accounts (
    id         UUID PRIMARY KEY,
    name       TEXT NOT NULL UNIQUE CHECK (length(name) BETWEEN 1 AND 128),
    created_us BIGINT NOT NULL
);

CREATE TABLE devices (
    id                  UUID PRIMARY KEY,
    account_id          UUID NOT NULL REFERENCES accounts (id),
    nonce               UUID NOT NULL,
    display_name        TEXT NOT NULL,
    state               TEXT NOT NULL
        CHECK (state IN ('New', 'Probation', 'Trusted', 'Quarantined', 'Banned')),
    consecutive_valid   BIGINT NOT NULL CHECK (consecutive_valid >= 0),
    consecutive_invalid BIGINT NOT NULL CHECK (consecutive_invalid >= 0),
    note                TEXT NOT NULL,
    created_us          BIGINT NOT NULL,
    last_seen_us        BIGINT NOT NULL,
    UNIQUE (account_id, nonce)
);

CREATE TABLE tokens (
    id         UUID PRIMARY KEY,
    hash       BYTEA NOT NULL UNIQUE CHECK (octet_length(hash) = 32),
    role       TEXT NOT NULL
        CHECK (role IN ('Invite', 'Volunteer', 'Owner', 'Admin', 'Observer')),
    account_id UUID NOT NULL REFERENCES accounts (id),
    device_id  UUID REFERENCES devices (id),
    created_us BIGINT NOT NULL,
    revoked_us BIGINT,
    CHECK ((role = 'Volunteer') = (device_id IS NOT NULL))
);
CREATE INDEX tokens_device ON tokens (device_id) WHERE device_id IS NOT NULL;

-- Complete blobs; a row appears only after the bytes are durable.
CREATE TABLE blobs (
    digest       BYTEA PRIMARY KEY CHECK (octet_length(digest) = 32),
    size         BIGINT NOT NULL CHECK (size >= 0),
    state        TEXT NOT NULL DEFAULT 'Complete'
        CHECK (state IN ('Complete', 'Tombstoned', 'Deleted')),
    completed_us BIGINT NOT NULL
);

CREATE TABLE chains (
    id                  UUID PRIMARY KEY,
    name                TEXT NOT NULL UNIQUE CHECK (length(name) BETWEEN 1 AND 128),
    owner_id            UUID NOT NULL REFERENCES accounts (id),
    state               TEXT NOT NULL
        CHECK (state IN ('Active', 'Paused', 'Stuck', 'Completed', 'Cancelled')),
    note                TEXT NOT NULL,
    hops                BIGINT NOT NULL CHECK (hops > 0),
    head                BIGINT NOT NULL CHECK (head BETWEEN 0 AND hops),
    generation          BIGINT NOT NULL CHECK (generation >= 0),
    quorum              BIGINT NOT NULL CHECK (quorum >= 2),
    soft_lease_us       BIGINT NOT NULL CHECK (soft_lease_us > 0),
    grace_us            BIGINT NOT NULL CHECK (grace_us >= 0),
    deadline_floor_us   BIGINT NOT NULL CHECK (deadline_floor_us > 0),
    compute_budget      BIGINT NOT NULL,
    disconnect_budget   BIGINT NOT NULL,
    mismatch_budget     BIGINT NOT NULL,
    backoff_base_us     BIGINT NOT NULL,
    backoff_cap_us      BIGINT NOT NULL,
    program             BYTEA NOT NULL REFERENCES blobs (digest),
    parameter_set       TEXT NOT NULL,
    parameters          BYTEA NOT NULL CHECK (octet_length(parameters) = 32),
    insecure            BOOLEAN NOT NULL,
    key_manifest        BYTEA NOT NULL REFERENCES blobs (digest),
    boundary_level      BIGINT NOT NULL,
    boundary_bytes      BIGINT NOT NULL CHECK (boundary_bytes > 0),
    worker_memory_bytes BIGINT NOT NULL,
    created_us          BIGINT NOT NULL,
    CHECK (state <> 'Stuck' OR note <> ''), -- I10
    CHECK ((state = 'Completed') = (head = hops))
);
CREATE INDEX chains_created ON chains (created_us, id);
CREATE INDEX chains_active ON chains (created_us, id) WHERE state = 'Active';

-- I2: the head never decreases in a generation.
CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '%', TG_ARGV[0] USING ERRCODE = 'integrity_constraint_violation';
END
$$;
CREATE TRIGGER chains_head_never_decreases BEFORE UPDATE ON chains FOR EACH ROW
WHEN (NEW.generation < OLD.generation
    OR (NEW.generation = OLD.generation AND NEW.head < OLD.head))
EXECUTE FUNCTION refuse_change('head decreases');

CREATE TABLE chain_keys (
    chain_id UUID NOT NULL REFERENCES chains (id),
    position BIGINT NOT NULL,
    digest   BYTEA NOT NULL REFERENCES blobs (digest),
    PRIMARY KEY (chain_id, position)
);

CREATE TABLE hops (
    chain_id            UUID NOT NULL REFERENCES chains (id),
    generation          BIGINT NOT NULL,
    hop                 BIGINT NOT NULL CHECK (hop >= 0),
    state               TEXT NOT NULL CHECK (state IN
        ('Blocked', 'Ready', 'Running', 'Verifying', 'Verified', 'Stuck', 'Cancelled')),
    stuck_reason        TEXT,
    epoch               BIGINT NOT NULL CHECK (epoch >= 0),
    weights             BYTEA NOT NULL REFERENCES blobs (digest),
    input               BYTEA REFERENCES blobs (digest),
    expected            BYTEA CHECK (octet_length(expected) = 32),
    output              BYTEA REFERENCES blobs (digest),
    method              TEXT CHECK (method IN ('Archive', 'Quorum')),
    compute_failures    BIGINT NOT NULL,
    disconnect_failures BIGINT NOT NULL,
    mismatch_failures   BIGINT NOT NULL,
    failure_reason      TEXT,
    failure_detail      TEXT,
    failure_us          BIGINT,
    last_failed_device  UUID REFERENCES devices (id),
    not_before_us       BIGINT,
    reopened            BIGINT NOT NULL,
    since_us            BIGINT NOT NULL,
    PRIMARY KEY (chain_id, generation, hop),
    CHECK ((state = 'Stuck') = (stuck_reason IS NOT NULL)), -- I10
    CHECK ((state = 'Verified') = (output IS NOT NULL)),
    CHECK ((output IS NULL) = (method IS NULL)),
    CHECK (state IN ('Blocked', 'Cancelled') OR input IS NOT NULL),
    CHECK (state <> 'Blocked' OR input IS NULL)
);

CREATE TABLE attempts (
    id                UUID PRIMARY KEY,
    chain_id          UUID NOT NULL,
    generation        BIGINT NOT NULL,
    hop               BIGINT NOT NULL,
    device_id         UUID NOT NULL REFERENCES devices (id),
    account_id        UUID NOT NULL REFERENCES accounts (id),
    nonce             UUID NOT NULL,
    epoch             BIGINT NOT NULL CHECK (epoch > 0),
    state             TEXT NOT NULL CHECK (state IN (
        'Leased', 'Fetching', 'Computing', 'Uploading', 'Submitted', 'Matched', 'Mismatched',
        'Inconclusive', 'Expired', 'FailedCompute', 'FailedDisconnect', 'FailedInput',
        'FailedOutOfMemory', 'FailedDisk', 'Abandoned', 'Cancelled', 'LateValid',
        'LateUnneeded', 'LateMismatched')),
    reason            TEXT,
    late              BOOLEAN NOT NULL,
    silent            BOOLEAN NOT NULL,
    leased_us         BIGINT NOT NULL,
    soft_expiry_us    BIGINT NOT NULL,
    hard_deadline_us  BIGINT NOT NULL,
    last_seen_us      BIGINT NOT NULL,
    ended_us          BIGINT,
    steps_done        BIGINT NOT NULL,
    steps_total       BIGINT NOT NULL,
    step              TEXT NOT NULL,
    compute_us        BIGINT NOT NULL,
    eta_low_us        BIGINT,
    eta_high_us       BIGINT,
    claim_output      BYTEA CHECK (octet_length(claim_output) = 32),
    claim_output_size BIGINT,
    claim_trace_root  BYTEA CHECK (octet_length(claim_trace_root) = 32),
    claim_trace       BYTEA CHECK (octet_length(claim_trace) = 32),
    claim_trace_size  BIGINT,
    claim_compute_us  BIGINT,
    -- The claimed output once it is stored and counts for a verdict (I3).
    result            BYTEA REFERENCES blobs (digest),
    FOREIGN KEY (chain_id, generation, hop) REFERENCES hops (chain_id, generation, hop),
    UNIQUE (device_id, nonce),
    UNIQUE (chain_id, generation, hop, epoch), -- I4
    -- I8: a live lease always has a deadline and no end.
    CHECK ((ended_us IS NULL) = (state IN ('Leased', 'Fetching', 'Computing', 'Uploading'))),
    CHECK ((eta_low_us IS NULL) = (eta_high_us IS NULL)),
    CHECK (state NOT IN ('Submitted', 'Matched', 'LateValid') OR result IS NOT NULL),
    CHECK (result IS NULL OR result = claim_output),
    CHECK ((claim_output IS NULL) = (claim_trace IS NULL))
);
CREATE INDEX attempts_live ON attempts (device_id)
    WHERE state IN ('Leased', 'Fetching', 'Computing', 'Uploading', 'Submitted');

CREATE TABLE uploads (
    id         UUID PRIMARY KEY,
    digest     BYTEA NOT NULL CHECK (octet_length(digest) = 32),
    size       BIGINT NOT NULL CHECK (size >= 0),
    role       TEXT NOT NULL CHECK (role IN
        ('Program', 'Weights', 'KeyManifest', 'EvaluationKey', 'Input', 'Output', 'Trace')),
    account_id UUID NOT NULL REFERENCES accounts (id),
    attempt_id UUID REFERENCES attempts (id),
    committed  BIGINT NOT NULL CHECK (committed BETWEEN 0 AND size),
    state      TEXT NOT NULL CHECK (state IN ('Reserved', 'Uploading')),
    updated_us BIGINT NOT NULL,
    UNIQUE (digest, account_id),
    CHECK (state = 'Uploading' OR committed = 0)
);

-- Append-only and hash-chained; the unique hop is I1.
CREATE TABLE archive (
    chain_id   UUID NOT NULL,
    position   BIGINT NOT NULL CHECK (position >= 0),
    generation BIGINT NOT NULL,
    hop        BIGINT NOT NULL,
    digest     BYTEA NOT NULL REFERENCES blobs (digest),
    method     TEXT NOT NULL CHECK (method IN ('Archive', 'Quorum')),
    at_us      BIGINT NOT NULL,
    previous   BYTEA NOT NULL CHECK (octet_length(previous) = 32),
    hash       BYTEA NOT NULL CHECK (octet_length(hash) = 32),
    PRIMARY KEY (chain_id, position),
    UNIQUE (chain_id, generation, hop),
    FOREIGN KEY (chain_id, generation, hop) REFERENCES hops (chain_id, generation, hop)
);

CREATE TABLE archive_attempts (
    chain_id   UUID NOT NULL,
    position   BIGINT NOT NULL,
    attempt_id UUID NOT NULL REFERENCES attempts (id),
    PRIMARY KEY (chain_id, position, attempt_id),
    FOREIGN KEY (chain_id, position) REFERENCES archive (chain_id, position)
);

CREATE TRIGGER archive_rows_never_change BEFORE UPDATE ON archive FOR EACH ROW
EXECUTE FUNCTION refuse_change('the archive is append-only');
CREATE TRIGGER archive_rows_never_go BEFORE DELETE ON archive FOR EACH ROW
EXECUTE FUNCTION refuse_change('the archive is append-only');
CREATE TRIGGER archive_attempts_never_change BEFORE UPDATE ON archive_attempts FOR EACH ROW
EXECUTE FUNCTION refuse_change('the archive is append-only');
CREATE TRIGGER archive_attempts_never_go BEFORE DELETE ON archive_attempts FOR EACH ROW
EXECUTE FUNCTION refuse_change('the archive is append-only');

-- I6: at most one credit per attempt.
CREATE TABLE credits (
    attempt_id UUID PRIMARY KEY REFERENCES attempts (id),
    account_id UUID NOT NULL REFERENCES accounts (id),
    earned_us  BIGINT NOT NULL
);
CREATE INDEX credits_account ON credits (account_id);

CREATE TABLE accuracies (
    chain_id       UUID NOT NULL,
    generation     BIGINT NOT NULL,
    hop            BIGINT NOT NULL,
    max_err_over_f DOUBLE PRECISION NOT NULL,
    worst_rel_rms  DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (chain_id, generation, hop),
    FOREIGN KEY (chain_id, generation, hop) REFERENCES hops (chain_id, generation, hop)
);

-- The outbox: written with the change it tells of; sequence numbers are never used twice.
CREATE TABLE events (
    sequence   BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    chain_id   UUID NOT NULL REFERENCES chains (id),
    kind       TEXT NOT NULL,
    hop        BIGINT,
    attempt_id UUID,
    detail     TEXT NOT NULL,
    at_us      BIGINT NOT NULL
);
CREATE INDEX events_chain ON events (chain_id, sequence);
