"""Names of APIs in messages."""

from __future__ import annotations

import tracemalloc

from odradek.wire.schemas import api_name


def test_an_unknown_api_has_a_name_and_leaves_nothing() -> None:
    """A client that has not logged in can send each of 65,536 keys."""
    assert (api_name(8), api_name(12_345)) == ("offset_commit", "api_12345")
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for key in range(20_000, 24_000):
            api_name(key)
        assert tracemalloc.get_traced_memory()[0] - before < 20_000
    finally:
        tracemalloc.stop()
