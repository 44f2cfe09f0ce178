"""Topics into a topic."""
