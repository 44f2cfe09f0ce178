"""The pipeline of ``odradek demo``: flights into a topic, from there into a table, and the check of the table."""
