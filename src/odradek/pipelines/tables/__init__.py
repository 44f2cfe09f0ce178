"""Tables that get each micro-batch once: Parquet and Delta, their files, their state, and their group."""
