"""Record batches of format v2: checks, stamps, readers and writers, by the rules of Kafka's `RecordBatch`."""
