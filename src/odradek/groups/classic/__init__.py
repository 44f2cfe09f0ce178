"""Classic groups: JoinGroup, SyncGroup and their records."""
