"""Identifiers, errors, effects and record codecs, without a clock, sockets, files or randomness."""
