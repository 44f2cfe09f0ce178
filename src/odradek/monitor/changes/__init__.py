"""Changes of committed offsets by a person: plans, the snapshot that undoes them, and the audit."""
