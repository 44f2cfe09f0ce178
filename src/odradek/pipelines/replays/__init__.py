"""Replays of ranges of topics into tables and topics."""
