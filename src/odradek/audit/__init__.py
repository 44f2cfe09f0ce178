"""The audit of a table by its topic, partition and offset columns. Any tool may have written the table."""
