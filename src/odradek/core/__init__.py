"""Identifiers, errors, effects, record codecs and helpers, without a clock, sockets or randomness. Only
``properties_file`` reads a file."""
