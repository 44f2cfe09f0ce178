"""The commit of a micro-batch to a table, as a pure state machine. See docs/notes/table-commits.md."""
