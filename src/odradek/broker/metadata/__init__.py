"""The catalogue on every node: the quorum that commits its records, the loader, and what requests read."""
