"""Identifiers, errors, effects and record codecs: no clock, socket, file or randomness in here."""
