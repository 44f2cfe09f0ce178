"""The parts of clients that users do not see, for tests that look at them or disturb them."""

from __future__ import annotations

from typing import Any


def engine_of(client: Any) -> Any:
    """Returns the engine of a ``Consumer`` or ``Producer`` of ours, blocking or asynchronous."""
    return client._engine


def lookups_of(reader: Any) -> Any:
    """Returns the lookups of a stream reader of the Spark source."""
    return reader._lookups
