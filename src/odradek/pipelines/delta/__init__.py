"""Delta tables, without a jar: the table, its state in the log, and what failed attempts and RESTORE leave."""
