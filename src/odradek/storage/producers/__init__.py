"""The idempotent and transactional producers of a log: sequences, snapshots, proofs of transactions."""
