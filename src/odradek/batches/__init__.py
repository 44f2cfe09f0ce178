"""Record batches of format v2: checks, offset assignment, readers and writers, by the rules of Kafka's
`RecordBatch`."""
