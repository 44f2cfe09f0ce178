"""The sink: its options and its tasks, with and without transactions."""
