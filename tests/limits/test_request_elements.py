"""The decoded elements of all requests in progress have one limit. Requests wait for their share in their order."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hostile import Known, packed
from support.peers import Peer, serving, until
from widest import Wide, wide_request

from odradek.broker.limits.request_elements import SMALL_REQUEST_ELEMENTS, RequestElements, Share
from odradek.broker.loop.scheduler import Task
from odradek.broker.server import BrokerServer
from odradek.core.errors import ErrorCode
from odradek.wire import frames, schemas
from odradek.wire.api_keys import (
    ADD_RAFT_VOTER,
    API_VERSIONS,
    DESCRIBE_CLIENT_QUOTAS,
    DESCRIBE_GROUPS,
    FETCH,
    LIST_GROUPS,
    LIST_TRANSACTIONS,
    OFFSET_COMMIT,
    UPDATE_FEATURES,
)
from odradek.wire.request_limits import SHORT_ARRAYS
from odradek.wire.schemas import Kind

LARGE, SMALL = 100_000, 30_000


def granted(shares: list[Share]) -> list[bool]:
    return [share.granted.resolved for share in shares]


def test_shares_are_granted_in_order_while_there_is_room() -> None:
    budget = RequestElements(LARGE, SMALL)
    shares = [budget.reserve(count) for count in (60_000, 50_000, 30_000)]
    assert granted(shares) == [True, False, False], "the third one fits, but the second one is before it"
    shares[0].release()
    assert granted(shares) == [True, True, True]
    assert budget.used == 80_000


def test_a_request_of_more_than_the_limit_runs_alone() -> None:
    budget = RequestElements(LARGE, SMALL)
    shares = [budget.reserve(count) for count in (30_000, LARGE + 1, 30_000)]
    assert granted(shares) == [True, False, False]
    shares[0].release()
    assert granted(shares) == [True, True, False]
    shares[1].release()
    assert granted(shares) == [True, True, True]


def test_smaller_requests_pass_by_the_widest_ones() -> None:
    budget = RequestElements(LARGE, SMALL)
    wide = [budget.reserve(LARGE) for _ in range(5)]
    small = budget.reserve(SMALL_REQUEST_ELEMENTS)
    assert granted([*wide, small]) == [True, False, False, False, False, True]
    assert not budget.is_full


def test_a_request_that_was_read_at_once_counts_even_above_the_limit() -> None:
    budget = RequestElements(LARGE, SMALL)
    taken = [budget.take(2000) for _ in range(20)]
    assert budget.is_full
    assert budget.used == 40_000
    waiting = budget.reserve(3000)
    assert granted([*taken[:1], waiting]) == [True, False]
    for share in taken[:7]:
        share.release()
    assert waiting.granted.resolved
    assert budget.used == 29_000


def test_a_disconnected_client_gives_its_share_back_once() -> None:
    budget = RequestElements(LARGE, SMALL)
    first, second, third = (budget.reserve(LARGE) for _ in range(3))
    second.release()
    second.release()
    assert (budget.used, budget.waiting) == (LARGE, 1)
    first.release()
    assert third.granted.resolved
    first.release()
    third.release()
    assert (budget.used, budget.waiting) == (0, 0)


@pytest.mark.parametrize("seed", range(30))
def test_every_share_is_granted_in_the_end_and_the_limit_holds(seed: int) -> None:
    dice = random.Random(seed)
    budget = RequestElements(LARGE, SMALL)
    shares: list[Share] = []
    for _ in range(400):
        if shares and dice.random() < 0.5:
            shares.pop(dice.randrange(len(shares))).release()
        else:
            shares.append(budget.reserve(dice.choice((300, 5000, 20_000, 40_000, LARGE, LARGE + 50_000))))
        running = [share.count for share in shares if share.granted.resolved]
        assert budget.used == sum(running)
        small = [count for count in running if count <= SMALL_REQUEST_ELEMENTS]
        large = [count for count in running if count > SMALL_REQUEST_ELEMENTS]
        assert sum(small) <= SMALL
        assert sum(large) <= LARGE or len(large) == 1
    while shares:
        running_shares = [share for share in shares if share.granted.resolved]
        assert running_shares, "some request always runs"
        shares.remove(running_shares[0])
        running_shares[0].release()
    assert (budget.used, budget.waiting) == (0, 0)


# --- in a broker ----------------------------------------------------------------------------------------------------

MANY = 3000
SMALL_REQUEST = 2500
"""Of the brokers in the following tests, so that they are fast."""


def commit(number: int) -> bytes:
    """A commit of partitions that do not exist."""
    row = {"committed_offset": 5, "committed_leader_epoch": -1, "committed_metadata": ""}
    rows = [{"partition_index": 1_000_000 * number + index, **row} for index in range(MANY)]
    message = {
        "group_id": "g", "generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None,
        "topics": [{"name": "none", "partitions": rows}],
    }  # fmt: skip
    return frames.encode_request(OFFSET_COMMIT, 8, number, "c", message)


@contextmanager
def watched(broker: BrokerServer, budget: RequestElements, uses: list[int]) -> Iterator[None]:
    """Records the use of the budget after each share of a task, which ends after one step."""
    run_share = Task.run_share

    def run_step(task: Task[Any], until_s: float) -> bool:
        has_more = run_share(task, 0.0)
        uses.append(budget.used)
        return has_more

    broker.request_elements = budget
    Task.run_share = run_step
    try:
        yield
    finally:
        Task.run_share = run_share


def test_ten_wide_requests_take_their_turns_and_others_pass_by(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as broker:
            budget, uses = RequestElements(2 * MANY + 100, SMALL, SMALL_REQUEST), list[int]()
            peers = [Peer(broker) for _ in range(10)]
            with watched(broker, budget, uses):
                for number, peer in enumerate(peers):
                    peer.connection.data_received(commit(number) + commit(number + 100))
                assert (await Peer(broker).ask(API_VERSIONS, 0, {})).api_keys
                assert not any(peer.written for peer in peers)
                await until(lambda: all(b"".join(peer.written).count(b"none") == 2 for peer in peers))
                await until(lambda: not broker.scheduler.busy)
            assert 2 * MANY <= max(uses) <= 2 * MANY + 100
            assert (budget.used, budget.waiting) == (0, 0)

    asyncio.run(scenario())


def test_clients_that_disconnect_while_they_wait_or_are_served_leave_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as broker:
            budget, uses = RequestElements(MANY, SMALL, SMALL_REQUEST), list[int]()
            peers = [Peer(broker) for _ in range(6)]
            with watched(broker, budget, uses):
                for number, peer in enumerate(peers):
                    peer.connection.data_received(commit(number))
                await until(lambda: budget.used > 0 and budget.waiting == 5)
                for peer in (peers[3], peers[0], peers[4]):  # one of them is served
                    peer.close()
                left = [peers[1], peers[2], peers[5]]
                await until(lambda: all(peer.written for peer in left))
                await until(lambda: not broker.scheduler.busy)
            assert max(uses) <= MANY
            assert (budget.used, budget.waiting) == (0, 0)

    asyncio.run(scenario())


def test_many_short_requests_count_too(tmp_path: Path) -> None:
    """A request of up to 2,000 elements is read at once, but a thousand of them are as many as two million elements."""

    async def scenario() -> None:
        async with serving(tmp_path) as broker:
            budget, uses = RequestElements(MANY, 4000), list[int]()
            peers = [Peer(broker) for _ in range(12)]
            names = [f"group-{number:05}" for number in range(1500)]
            request = {"groups": names, "include_authorized_operations": False}
            with watched(broker, budget, uses):
                for peer in peers:
                    peer.connection.data_received(frames.encode_request(DESCRIBE_GROUPS, 5, 7, "c", request))
                await until(lambda: budget.waiting == 9)
                assert budget.used == 4500, "three were read; the others wait"
                await until(lambda: all(peer.written for peer in peers))
                await until(lambda: not broker.scheduler.busy)
            assert max(uses) <= 4500
            assert (budget.used, budget.waiting) == (0, 0)

    asyncio.run(scenario())


def test_a_waiting_fetch_holds_no_share(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as broker:
            budget = broker.request_elements = RequestElements(MANY, SMALL)
            row = {
                "current_leader_epoch": -1, "fetch_offset": 0, "last_fetched_epoch": -1, "log_start_offset": -1,
                "partition_max_bytes": 100,
            }  # fmt: skip
            rows = [{"partition": index % 2, **row} for index in range(3000)]
            message = {
                "replica_id": -1, "max_wait": 60_000, "min_bytes": 1, "max_bytes": 1000, "isolation_level": 0,
                "session_id": 0, "session_epoch": -1, "topics": [{"topic": "t", "partitions": rows}],
                "forgotten_topics_data": [], "rack_id": "",
            }  # fmt: skip
            peer = Peer(broker)
            peer.connection.data_received(frames.encode_request(FETCH, 11, 7, "c", message))
            await until(lambda: bool(peer.connection.parked) and not broker.scheduler.busy)
            assert not peer.written
            assert budget.used == 0

    asyncio.run(scenario())


SHORT = [
    (ADD_RAFT_VOTER, "listeners"), (DESCRIBE_CLIENT_QUOTAS, "components"), (LIST_GROUPS, "states_filter"),
    (LIST_GROUPS, "types_filter"), (LIST_TRANSACTIONS, "state_filters"), (UPDATE_FEATURES, "feature_updates"),
]  # fmt: skip


def test_arrays_that_cannot_be_long_are_refused_before_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*_: Any, **__: Any) -> Any:
        raise AssertionError("the request was read")

    async def scenario() -> None:
        async with serving(tmp_path) as broker:
            monkeypatch.setattr(schemas, "decode_in_steps", read)
            for api_key, name in SHORT:
                version = schemas.known_versions(api_key)[1]
                known = Known((), (uuid.UUID(int=5),), ())
                wide = wide_request(known, Wide(api_key, version, f"/{name}", "strange"), 2100)
                peer = Peer(broker)
                await peer.exchange(packed(wide, 1))
                (frame,) = peer.written
                _, found = frames.decode_reply(api_key, version, frame[4:])
                assert found.error_code == ErrorCode.invalid_request, name

    asyncio.run(scenario())
    classes = {(schemas.message_type(key, schemas.known_versions(key)[1], Kind.REQUEST), name) for key, name in SHORT}
    assert {(entity.__name__, name) for entity, name in classes} == SHORT_ARRAYS
