"""What runs in Spark's driver for each micro-batch: commits of groups, transactions, lag."""
