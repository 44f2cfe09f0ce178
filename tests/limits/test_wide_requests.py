"""The widest requests of each API are served in steps. Each step allocates or frees at most 6,000 memory blocks.

Each step also reads at most 1,100 elements of a long array again.

In nearly all cases, the steps of a request together allocate 10,000 blocks or more.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
from hostile import places_of, versions_of
from wide_requests import Most, most_in_a_step

from odradek.broker.handlers import handler_files
from odradek.wire import schemas
from odradek.wire.api_keys import JOIN_GROUP, SYNC_GROUP
from odradek.wire.schemas import Kind

BLOCKS_PER_STEP = 6000
READS_PER_STEP = 1100
"""Elements of a long array that one step reads from its bytes. Each takes a few microseconds."""
_ELSEWHERE = {JOIN_GROUP, SYNC_GROUP}
"""`test_classic_group_steps` covers these requests in groups of many members."""


def check(most: Most) -> None:
    assert most.blocks <= BLOCKS_PER_STEP
    assert most.read_again <= READS_PER_STEP


@pytest.fixture(scope="module")
def process() -> Iterator[Executor]:
    """A separate process, which has few objects."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        yield process


def places(api_key: int) -> list[str]:
    """The paths of the arrays in the newest version of a request."""
    return places_of(schemas.message_type(api_key, versions_of(api_key)[-1], Kind.REQUEST), "widest")


WIDE = [(key, where) for key in (api.key for api in handler_files("client")) for where in places(key)]


@pytest.mark.parametrize(("api_key", "where"), [case for case in WIDE if case[0] not in _ELSEWHERE])
def test_no_step_of_a_wide_request_is_long(api_key: int, where: str, tmp_path: Path, process: Executor) -> None:
    check(process.submit(most_in_a_step, api_key, where, tmp_path).result())


STRANGE = [
    (16, "/states_filter"), (16, "/types_filter"), (19, "/topics/configs"), (48, "/components"),
    (49, "/entries/entity"), (49, "/entries/ops"), (66, "/state_filters"), (69, "/group_ids"),
]  # fmt: skip
"""Arrays that a handler could take as one step, because they are inside of an element or because valid ones are short.

Their texts are all different and unknown."""


@pytest.mark.parametrize(("api_key", "where"), STRANGE)
def test_no_step_of_unknown_names_is_long(api_key: int, where: str, tmp_path: Path, process: Executor) -> None:
    check(process.submit(most_in_a_step, api_key, where, tmp_path, 2 * BLOCKS_PER_STEP).result())


HELD = {(1, "/topics/partitions"): 4.2, (21, "/topics"): 4.2, (35, "/topics/partitions"): 1.3}
"""Arrays whose elements a handler has to keep, with the most objects for each element.

A partition index in the request itself is one object."""


@pytest.mark.parametrize(("api_key", "where"), HELD)
def test_a_long_request_keeps_few_objects(api_key: int, where: str, tmp_path: Path, process: Executor) -> None:
    count = 10_000
    most = process.submit(most_in_a_step, api_key, where, tmp_path, count).result()
    assert most.held / count <= HELD[api_key, where]
