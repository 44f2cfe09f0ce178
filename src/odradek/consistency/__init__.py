"""Checks of what clients saw: a history of sends, polls, commits and lookups, and what must not be in it.

``client_history`` reads a history, ``checks`` finds its anomalies. docs/checker.md describes both.
"""
