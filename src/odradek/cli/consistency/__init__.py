"""The command that checks a history of clients."""
