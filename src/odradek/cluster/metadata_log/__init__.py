"""The observers of the metadata log: what its leader knows of them, and an observer's own side."""
