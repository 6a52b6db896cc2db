-- Adaptive trust, known-answer hops, rechecks, referees.

-- Last result whose right answer was known before; how long the device takes compared with a chain's
-- middle attempt, in thousandths, and when that was measured; runs single steps for the coordinator.
ALTER TABLE devices ADD COLUMN proven_us INTEGER;
ALTER TABLE devices ADD COLUMN pace_permille INTEGER CHECK (pace_permille >= 0);
ALTER TABLE devices ADD COLUMN pace_us INTEGER;
ALTER TABLE devices ADD COLUMN referee INTEGER NOT NULL DEFAULT 0 CHECK (referee IN (0, 1));

-- Set where the whole result rests on one account's word; `method` says Quorum then, as before.
ALTER TABLE hops ADD COLUMN alone TEXT CHECK (alone IN ('Trusted', 'Referee'));
ALTER TABLE hops ADD COLUMN recheck INTEGER NOT NULL DEFAULT 0
    CHECK (recheck IN (0, 1) AND (recheck = 0 OR output IS NOT NULL));
ALTER TABLE archive ADD COLUMN alone TEXT CHECK (alone IN ('Trusted', 'Referee'));
CREATE INDEX hops_recheck ON hops (chain_id, generation, hop) WHERE recheck = 1;

ALTER TABLE attempts ADD COLUMN purpose TEXT NOT NULL DEFAULT 'Work'
    CHECK (purpose IN ('Work', 'Probe', 'Recheck'));
ALTER TABLE attempts ADD COLUMN solo INTEGER NOT NULL DEFAULT 0 CHECK (solo IN (0, 1));
CREATE INDEX attempts_accepted ON attempts (device_id, ended_us)
    WHERE state IN ('Matched', 'LateValid');
