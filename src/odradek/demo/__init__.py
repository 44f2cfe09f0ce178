"""The pipeline of ``odradek demo``: flights into a topic, from the topic into a table, and a check of the table."""
