"""The values of records as columns of a table: Avro and JSON, in Spark and in its workers."""
