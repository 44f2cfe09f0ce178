"""``odradek pipeline``: pipelines on Spark."""
