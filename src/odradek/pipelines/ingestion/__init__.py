"""Topics into tables."""
