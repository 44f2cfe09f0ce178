"""The HTTP service of the monitor and its replies: metrics, Burrow's API, our own API."""
