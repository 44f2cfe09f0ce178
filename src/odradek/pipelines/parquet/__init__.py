"""Tables of Parquet files with a log of their own."""
