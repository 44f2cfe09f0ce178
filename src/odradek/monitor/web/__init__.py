"""The web page of the monitor: groups, one group, one topic."""
