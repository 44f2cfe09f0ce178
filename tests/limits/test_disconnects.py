"""A client that disconnects in the middle of a wide request: nothing of it stays, and little of it is freed at once.

The arrays come from the schemas, as in ``test_wide_requests``. The slow test has all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
from disconnects import Disconnect, disconnects
from hostile import versions_of
from widest import Wide, wide_arrays

from odradek.wire.api_keys import (
    DELETE_GROUPS,
    DELETE_RECORDS,
    FETCH,
    LEAVE_GROUP,
    OFFSET_COMMIT,
    OFFSET_DELETE,
    OFFSET_FETCH,
)

WIDTH = 3000
MOST_FREED = 16_000
"""Memory blocks. 250,000 elements of five blocks take 40 ms; containers of up to 1,000 elements are freed at once."""
MOST_LEFT = 4000
SESSION_LEFT = 3 * WIDTH
"""Blocks of a fetch session: it stays when the request is over, and a disconnect near the end comes after that on a
quick machine."""
MOST_STEPS = 60
"""The steps after a disconnect: those that free the containers."""
GOES_ON = {LEAVE_GROUP, DELETE_RECORDS, DELETE_GROUPS, OFFSET_DELETE}
"""Removals run to their end, as in Kafka. The request keeps its share of the elements until then."""
FREED_IN_STEPS = (
    (OFFSET_COMMIT, "/topics", "strange"),
    (OFFSET_FETCH, "/groups/topics", "strange"),
)


@pytest.fixture(scope="module")
def process() -> Iterator[Executor]:
    """A separate process, which has few objects."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        yield process


def check(wide: Wide, found: list[Disconnect]) -> None:
    for one in found:
        assert (one.used, one.waiting, one.held_bytes) == (0, 0, 0), one
        assert one.freed <= MOST_FREED, one
        assert one.left <= MOST_LEFT + (SESSION_LEFT if wide.api_key == FETCH else 0), one
        assert one.after <= MOST_STEPS or wide.api_key in GOES_ON, one


@pytest.mark.parametrize(("api_key", "where", "variant"), FREED_IN_STEPS)
def test_a_disconnect_frees_a_wide_request_in_steps(
    api_key: int, where: str, variant: str, tmp_path: Path, process: Executor
) -> None:
    wide = Wide(api_key, versions_of(api_key)[-1], where, variant)
    check(wide, process.submit(disconnects, wide, tmp_path, WIDTH).result())


@pytest.mark.slow
@pytest.mark.parametrize("wide", wide_arrays(variants=("known", "strange")), ids=str)
def test_a_disconnect_leaves_nothing_of_a_wide_request(wide: Wide, tmp_path: Path, process: Executor) -> None:
    check(wide, process.submit(disconnects, wide, tmp_path, WIDTH).result())
