"""Fixtures of the demo's tests."""

from __future__ import annotations

from support.python_starts import fork_server, python_starts

__all__ = ["fork_server", "python_starts"]
