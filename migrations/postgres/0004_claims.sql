-- A hop may have very many attempts that came to nothing, and a chain very many attempts: what a request for work
-- looks at has indexes of its own.
CREATE INDEX attempts_pending ON attempts (chain_id, generation, hop)
    WHERE state IN ('Leased', 'Fetching', 'Computing', 'Uploading', 'Submitted');
CREATE INDEX attempts_matched ON attempts (chain_id, ended_us) WHERE state = 'Matched';
