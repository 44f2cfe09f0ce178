"""Record batches of format v2: check, stamp, read, write. Layout and rules are those of Kafka's `RecordBatch`."""
