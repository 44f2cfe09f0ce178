"""Groups with committed offsets as state machines: the classic protocol, KIP-848, offsets, assignors."""
