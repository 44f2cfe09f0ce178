"""What the broker knows about topics: a state machine and the records it writes."""
