"""The partitions of the broker: their logs on disk and the requests that wait for them."""
