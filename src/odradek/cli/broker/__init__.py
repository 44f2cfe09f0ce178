"""Commands that run brokers of this machine, and commands for the data directories of stopped brokers."""
