-- The table that tailers write to, and a view of each record once. "Other tools" in docs/fleet.md.
CREATE TABLE IF NOT EXISTS telemetry.tailed (node String, file String, line String, received DateTime DEFAULT now())
ENGINE = MergeTree PARTITION BY toYYYYMM(received) ORDER BY (file, received);

CREATE VIEW IF NOT EXISTS telemetry.tailed_once AS
SELECT node, file, visitParamExtractUInt(line, 'session') AS session, visitParamExtractInt(line, 'seq') AS seq,
  any(line) AS record
FROM telemetry.tailed
GROUP BY node, file, session, seq;
