"""Identifiers, errors, effects and promises, without a clock, files, sockets or randomness."""
