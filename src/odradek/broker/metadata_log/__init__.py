"""The metadata log on disk: records and snapshots, the checks of a start, what can be saved of a damaged log."""
