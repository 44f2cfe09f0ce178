"""What the broker measures of itself, as a page for Prometheus. A broker without this page does not load it."""
