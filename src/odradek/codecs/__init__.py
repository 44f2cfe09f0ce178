"""Codecs: the records of the internal topics, and what classic members of groups send each other."""
