"""The controller of a cluster as state machines: registrations, sessions, placement, elections. Pure, for one node."""
