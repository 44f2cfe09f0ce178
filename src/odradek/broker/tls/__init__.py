"""TLS of the broker's listeners. A broker without such a listener does not load this package."""
