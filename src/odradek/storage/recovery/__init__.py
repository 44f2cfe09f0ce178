"""Load and recovery of a log's directory, and the check of one without changes."""
