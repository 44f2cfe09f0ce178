"""Runtime of durable state machines. Each has one partition of an internal topic, and a restart needs only its log."""
