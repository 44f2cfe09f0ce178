"""The audit of a table by its topic, partition and offset columns, whoever wrote it."""
