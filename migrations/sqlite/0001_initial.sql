-- Ids are 16 bytes, digests 32 bytes, times integer microseconds since the Unix epoch, durations
-- integer microseconds. Foreign keys to blobs keep I3: no row refers to a blob that is not durable.

CREATE TABLE accounts (
    id         BLOB PRIMARY KEY CHECK (length(id) = 16),
    name       TEXT NOT NULL UNIQUE CHECK (length(name) BETWEEN 1 AND 128),
    created_us INTEGER NOT NULL
) STRICT;

CREATE TABLE devices (
    id                  BLOB PRIMARY KEY CHECK (length(id) = 16),
    account_id          BLOB NOT NULL REFERENCES accounts (id),
    nonce               BLOB NOT NULL CHECK (length(nonce) = 16),
    display_name        TEXT NOT NULL,
    state               TEXT NOT NULL
        CHECK (state IN ('New', 'Probation', 'Trusted', 'Quarantined', 'Banned')),
    consecutive_valid   INTEGER NOT NULL CHECK (consecutive_valid >= 0),
    consecutive_invalid INTEGER NOT NULL CHECK (consecutive_invalid >= 0),
    note                TEXT NOT NULL,
    created_us          INTEGER NOT NULL,
    last_seen_us        INTEGER NOT NULL,
    UNIQUE (account_id, nonce)
) STRICT;

CREATE TABLE tokens (
    id         BLOB PRIMARY KEY CHECK (length(id) = 16),
    hash       BLOB NOT NULL UNIQUE CHECK (length(hash) = 32),
    role       TEXT NOT NULL
        CHECK (role IN ('Invite', 'Volunteer', 'Owner', 'Admin', 'Observer')),
    account_id BLOB NOT NULL REFERENCES accounts (id),
    device_id  BLOB REFERENCES devices (id),
    created_us INTEGER NOT NULL,
    revoked_us INTEGER,
    CHECK ((role = 'Volunteer') = (device_id IS NOT NULL))
) STRICT;
CREATE INDEX tokens_device ON tokens (device_id) WHERE device_id IS NOT NULL;

-- Complete blobs; a row appears only after the bytes are durable.
CREATE TABLE blobs (
    digest       BLOB PRIMARY KEY CHECK (length(digest) = 32),
    size         INTEGER NOT NULL CHECK (size >= 0),
    state        TEXT NOT NULL DEFAULT 'Complete'
        CHECK (state IN ('Complete', 'Tombstoned', 'Deleted')),
    completed_us INTEGER NOT NULL
) STRICT;

CREATE TABLE uploads (
    id         BLOB PRIMARY KEY CHECK (length(id) = 16),
    digest     BLOB NOT NULL CHECK (length(digest) = 32),
    size       INTEGER NOT NULL CHECK (size >= 0),
    role       TEXT NOT NULL CHECK (role IN
        ('Program', 'Weights', 'KeyManifest', 'EvaluationKey', 'Input', 'Output', 'Trace')),
    account_id BLOB NOT NULL REFERENCES accounts (id),
    attempt_id BLOB REFERENCES attempts (id),
    committed  INTEGER NOT NULL CHECK (committed BETWEEN 0 AND size),
    state      TEXT NOT NULL CHECK (state IN ('Reserved', 'Uploading')),
    updated_us INTEGER NOT NULL,
    UNIQUE (digest, account_id),
    CHECK (state = 'Uploading' OR committed = 0)
) STRICT;

CREATE TABLE chains (
    id                  BLOB PRIMARY KEY CHECK (length(id) = 16),
    name                TEXT NOT NULL UNIQUE CHECK (length(name) BETWEEN 1 AND 128),
    owner_id            BLOB NOT NULL REFERENCES accounts (id),
    state               TEXT NOT NULL
        CHECK (state IN ('Active', 'Paused', 'Stuck', 'Completed', 'Cancelled')),
    note                TEXT NOT NULL,
    hops                INTEGER NOT NULL CHECK (hops > 0),
    head                INTEGER NOT NULL CHECK (head BETWEEN 0 AND hops),
    generation          INTEGER NOT NULL CHECK (generation >= 0),
    quorum              INTEGER NOT NULL CHECK (quorum >= 2),
    soft_lease_us       INTEGER NOT NULL CHECK (soft_lease_us > 0),
    grace_us            INTEGER NOT NULL CHECK (grace_us >= 0),
    deadline_floor_us   INTEGER NOT NULL CHECK (deadline_floor_us > 0),
    compute_budget      INTEGER NOT NULL,
    disconnect_budget   INTEGER NOT NULL,
    mismatch_budget     INTEGER NOT NULL,
    backoff_base_us     INTEGER NOT NULL,
    backoff_cap_us      INTEGER NOT NULL,
    program             BLOB NOT NULL REFERENCES blobs (digest),
    parameter_set       TEXT NOT NULL,
    parameters          BLOB NOT NULL CHECK (length(parameters) = 32),
    insecure            INTEGER NOT NULL CHECK (insecure IN (0, 1)),
    key_manifest        BLOB NOT NULL REFERENCES blobs (digest),
    boundary_level      INTEGER NOT NULL,
    boundary_bytes      INTEGER NOT NULL CHECK (boundary_bytes > 0),
    worker_memory_bytes INTEGER NOT NULL,
    created_us          INTEGER NOT NULL,
    CHECK (state <> 'Stuck' OR note <> ''), -- I10
    CHECK ((state = 'Completed') = (head = hops))
) STRICT;
CREATE INDEX chains_created ON chains (created_us, id);
CREATE INDEX chains_active ON chains (created_us, id) WHERE state = 'Active';

-- I2: the head never decreases in a generation.
CREATE TRIGGER chains_head_never_decreases BEFORE UPDATE ON chains
WHEN NEW.generation < OLD.generation
    OR (NEW.generation = OLD.generation AND NEW.head < OLD.head)
BEGIN
    SELECT RAISE(ABORT, 'head decreases');
END;

CREATE TABLE chain_keys (
    chain_id BLOB NOT NULL REFERENCES chains (id),
    position INTEGER NOT NULL,
    digest   BLOB NOT NULL REFERENCES blobs (digest),
    PRIMARY KEY (chain_id, position)
) STRICT;

CREATE TABLE hops (
    chain_id            BLOB NOT NULL REFERENCES chains (id),
    generation          INTEGER NOT NULL,
    hop                 INTEGER NOT NULL CHECK (hop >= 0),
    state               TEXT NOT NULL CHECK (state IN
        ('Blocked', 'Ready', 'Running', 'Verifying', 'Verified', 'Stuck', 'Cancelled')),
    stuck_reason        TEXT,
    epoch               INTEGER NOT NULL CHECK (epoch >= 0),
    weights             BLOB NOT NULL REFERENCES blobs (digest),
    input               BLOB REFERENCES blobs (digest),
    expected            BLOB CHECK (length(expected) = 32),
    output              BLOB REFERENCES blobs (digest),
    method              TEXT CHECK (method IN ('Archive', 'Quorum')),
    compute_failures    INTEGER NOT NULL,
    disconnect_failures INTEGER NOT NULL,
    mismatch_failures   INTEGER NOT NULL,
    failure_reason      TEXT,
    failure_detail      TEXT,
    failure_us          INTEGER,
    last_failed_device  BLOB REFERENCES devices (id),
    not_before_us       INTEGER,
    reopened            INTEGER NOT NULL,
    since_us            INTEGER NOT NULL,
    PRIMARY KEY (chain_id, generation, hop),
    CHECK ((state = 'Stuck') = (stuck_reason IS NOT NULL)), -- I10
    CHECK ((state = 'Verified') = (output IS NOT NULL)),
    CHECK ((output IS NULL) = (method IS NULL)),
    CHECK (state IN ('Blocked', 'Cancelled') OR input IS NOT NULL),
    CHECK (state <> 'Blocked' OR input IS NULL)
) STRICT;

CREATE TABLE attempts (
    id                BLOB PRIMARY KEY CHECK (length(id) = 16),
    chain_id          BLOB NOT NULL,
    generation        INTEGER NOT NULL,
    hop               INTEGER NOT NULL,
    device_id         BLOB NOT NULL REFERENCES devices (id),
    account_id        BLOB NOT NULL REFERENCES accounts (id),
    nonce             BLOB NOT NULL CHECK (length(nonce) = 16),
    epoch             INTEGER NOT NULL CHECK (epoch > 0),
    state             TEXT NOT NULL CHECK (state IN (
        'Leased', 'Fetching', 'Computing', 'Uploading', 'Submitted', 'Matched', 'Mismatched',
        'Inconclusive', 'Expired', 'FailedCompute', 'FailedDisconnect', 'FailedInput',
        'FailedOutOfMemory', 'FailedDisk', 'Abandoned', 'Cancelled', 'LateValid',
        'LateUnneeded', 'LateMismatched')),
    reason            TEXT,
    late              INTEGER NOT NULL CHECK (late IN (0, 1)),
    silent            INTEGER NOT NULL CHECK (silent IN (0, 1)),
    leased_us         INTEGER NOT NULL,
    soft_expiry_us    INTEGER NOT NULL,
    hard_deadline_us  INTEGER NOT NULL,
    last_seen_us      INTEGER NOT NULL,
    ended_us          INTEGER,
    steps_done        INTEGER NOT NULL,
    steps_total       INTEGER NOT NULL,
    step              TEXT NOT NULL,
    compute_us        INTEGER NOT NULL,
    eta_low_us        INTEGER,
    eta_high_us       INTEGER,
    claim_output      BLOB CHECK (length(claim_output) = 32),
    claim_output_size INTEGER,
    claim_trace_root  BLOB CHECK (length(claim_trace_root) = 32),
    claim_trace       BLOB CHECK (length(claim_trace) = 32),
    claim_trace_size  INTEGER,
    claim_compute_us  INTEGER,
    -- The claimed output once it is stored and counts for a verdict (I3).
    result            BLOB REFERENCES blobs (digest),
    FOREIGN KEY (chain_id, generation, hop) REFERENCES hops (chain_id, generation, hop),
    UNIQUE (device_id, nonce),
    UNIQUE (chain_id, generation, hop, epoch), -- I4
    -- I8: a live lease always has a deadline and no end.
    CHECK ((ended_us IS NULL) = (state IN ('Leased', 'Fetching', 'Computing', 'Uploading'))),
    CHECK ((eta_low_us IS NULL) = (eta_high_us IS NULL)),
    CHECK (state NOT IN ('Submitted', 'Matched', 'LateValid') OR result IS NOT NULL),
    CHECK (result IS NULL OR result = claim_output),
    CHECK ((claim_output IS NULL) = (claim_trace IS NULL))
) STRICT;
CREATE INDEX attempts_live ON attempts (device_id)
    WHERE state IN ('Leased', 'Fetching', 'Computing', 'Uploading', 'Submitted');

-- Append-only and hash-chained; the unique hop is I1.
CREATE TABLE archive (
    chain_id   BLOB NOT NULL,
    position   INTEGER NOT NULL CHECK (position >= 0),
    generation INTEGER NOT NULL,
    hop        INTEGER NOT NULL,
    digest     BLOB NOT NULL REFERENCES blobs (digest),
    method     TEXT NOT NULL CHECK (method IN ('Archive', 'Quorum')),
    at_us      INTEGER NOT NULL,
    previous   BLOB NOT NULL CHECK (length(previous) = 32),
    hash       BLOB NOT NULL CHECK (length(hash) = 32),
    PRIMARY KEY (chain_id, position),
    UNIQUE (chain_id, generation, hop),
    FOREIGN KEY (chain_id, generation, hop) REFERENCES hops (chain_id, generation, hop)
) STRICT;

CREATE TABLE archive_attempts (
    chain_id   BLOB NOT NULL,
    position   INTEGER NOT NULL,
    attempt_id BLOB NOT NULL REFERENCES attempts (id),
    PRIMARY KEY (chain_id, position, attempt_id),
    FOREIGN KEY (chain_id, position) REFERENCES archive (chain_id, position)
) STRICT;

CREATE TRIGGER archive_rows_never_change BEFORE UPDATE ON archive
BEGIN
    SELECT RAISE(ABORT, 'the archive is append-only');
END;
CREATE TRIGGER archive_rows_never_go BEFORE DELETE ON archive
BEGIN
    SELECT RAISE(ABORT, 'the archive is append-only');
END;
CREATE TRIGGER archive_attempts_never_change BEFORE UPDATE ON archive_attempts
BEGIN
    SELECT RAISE(ABORT, 'the archive is append-only');
END;
CREATE TRIGGER archive_attempts_never_go BEFORE DELETE ON archive_attempts
BEGIN
    SELECT RAISE(ABORT, 'the archive is append-only');
END;

-- I6: at most one credit per attempt.
CREATE TABLE credits (
    attempt_id BLOB PRIMARY KEY REFERENCES attempts (id),
    account_id BLOB NOT NULL REFERENCES accounts (id),
    earned_us  INTEGER NOT NULL
) STRICT;
CREATE INDEX credits_account ON credits (account_id);

CREATE TABLE accuracies (
    chain_id       BLOB NOT NULL,
    generation     INTEGER NOT NULL,
    hop            INTEGER NOT NULL,
    max_err_over_f REAL NOT NULL,
    worst_rel_rms  REAL NOT NULL,
    PRIMARY KEY (chain_id, generation, hop),
    FOREIGN KEY (chain_id, generation, hop) REFERENCES hops (chain_id, generation, hop)
) STRICT;

-- The outbox: written with the change it tells of; sequence numbers are never used twice.
CREATE TABLE events (
    sequence   INTEGER PRIMARY KEY AUTOINCREMENT,
    chain_id   BLOB NOT NULL REFERENCES chains (id),
    kind       TEXT NOT NULL,
    hop        INTEGER,
    attempt_id BLOB,
    detail     TEXT NOT NULL,
    at_us      INTEGER NOT NULL
) STRICT;
CREATE INDEX events_chain ON events (chain_id, sequence);
