"""Files of a data directory: the file system, its failures, descriptors and checkpoints."""
