"""The values of records as columns, decoded in Spark's workers: Avro and JSON, by kernels and row by row."""
