"""Text: what may be printed, JSON and settings from files, lines of logs."""
