"""The settings of replication act: what followers ask for, over how many connections, and what is stored when."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.replicated_nodes import NONE, ReplicatedNodes, bytes_below_watermark
from support.simulated_brokers import SimulatedLink
from support.simulated_node import HOME

from odradek.core.errors import ErrorCode
from odradek.storage.disk import checkpoints
from odradek.wire import frames, schemas
from odradek.wire.api_keys import FETCH, INCREMENTAL_ALTER_CONFIGS

THREE = (1, 2, 3)


class SentFetches:
    """The fetches that broker 2 sends as a follower: each connection, and its request."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: list[tuple[SimulatedLink, Any]] = []
        write = SimulatedLink.write

        def noted(link: SimulatedLink, data: bytes) -> None:
            head = frames.read_request_head(data[4:])
            if head.api_key == FETCH:
                found = schemas.decode(FETCH, head.version, schemas.Kind.REQUEST, data[4:], head.body)[0]
                if found.replica_state.replica_id == 2 and found.topics and found.max_bytes == 500_000:
                    self.sent.append((link, found))
            write(link, data)

        monkeypatch.setattr(SimulatedLink, "write", noted)

    def requests(self) -> Iterator[Any]:
        return (request for _, request in self.sent)


def test_followers_ask_for_what_the_settings_say(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {
        "replica.fetch.wait.max.ms": "333", "replica.fetch.min.bytes": "7", "replica.fetch.max.bytes": "20000",
        "replica.fetch.response.max.bytes": "500000",
    }  # fmt: skip
    fetches = SentFetches(monkeypatch)
    nodes = ReplicatedNodes(settings)
    nodes.create("t", THREE)
    assert nodes.produce(1) == (NONE, 0)
    asked = list(fetches.requests())
    assert {(one.max_wait.total_seconds(), one.min_bytes, one.max_bytes) for one in asked} == {(0.333, 7, 500_000)}
    assert {part.partition_max_bytes for one in asked for topic in one.topics for part in topic.partitions} == {20_000}


@pytest.mark.parametrize("fetchers", [1, 2, 3])
def test_each_fetcher_has_a_connection_and_some_of_the_partitions(
    fetchers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"num.replica.fetchers": str(fetchers), "replica.fetch.response.max.bytes": "500000"}
    fetches = SentFetches(monkeypatch)
    nodes = ReplicatedNodes(settings)
    nodes.create("t", *[(1, 2)] * 6)
    for index in range(6):
        assert nodes.produce(1, index=index) == (NONE, 0)
    places: dict[SimulatedLink, set[int]] = {}
    for link, request in fetches.sent:
        places.setdefault(link, set()).update(part.partition for topic in request.topics for part in topic.partitions)
    assert len(places) == fetchers
    assert sorted(index for each in places.values() for index in each) == list(range(6)), "each has one fetcher"
    assert {len(each) for each in places.values()} == {6 // fetchers}


def test_partitions_have_other_fetchers_when_their_number_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    fetches = SentFetches(monkeypatch)
    nodes = ReplicatedNodes({"replica.fetch.response.max.bytes": "500000"}, count=2)
    nodes.create("t", *[(1, 2)] * 6)
    for round_number, fetchers in enumerate((3, 2, 1, 4)):
        row = {"name": "num.replica.fetchers", "config_operation": 0, "value": str(fetchers)}
        asked = {"resource_type": 4, "resource_name": "", "configs": [row]}
        message = {"resources": [asked], "validate_only": False}
        reply = nodes.controller.connect().call(INCREMENTAL_ALTER_CONFIGS, 1, message)
        assert reply.responses[0].error_code is NONE
        for index in range(6):
            assert nodes.produce(1, 2, acks=1, index=index) == (NONE, 4 * round_number)
        nodes.settle()
        nodes.world.advance(1_200)  # each fetcher has ended the request that it sent before
        fetches.sent.clear()
        for index in range(6):
            assert nodes.produce(1, 2, index=index) == (NONE, 4 * round_number + 2)
        places: dict[SimulatedLink, set[int]] = {}
        for link, request in fetches.sent:
            for topic in request.topics:
                places.setdefault(link, set()).update(part.partition for part in topic.partitions)
        assert len(places) == fetchers
        assert sorted(index for each in places.values() for index in each) == list(range(6)), "each has one fetcher"
    for index in range(6):
        nodes.run_until_equal(index=index)
        assert len({bytes_below_watermark(nodes.partition(number, index=index)) for number in (1, 2)}) == 1


def test_a_fetch_waits_for_the_least_bytes_or_the_longest_wait() -> None:
    nodes = ReplicatedNodes({"replica.fetch.wait.max.ms": "900", "replica.fetch.min.bytes": "100000"})
    nodes.create("t", (1, 2))
    nodes.world.advance(1_000)
    began_ms = nodes.world.now_ms
    assert nodes.produce(1) == (NONE, 0)
    waited_ms = nodes.world.now_ms - began_ms
    assert 20 < waited_ms < 2_000, "the follower's fetch waits for more bytes, but not for ever"
    quick = ReplicatedNodes({"replica.fetch.wait.max.ms": "900", "replica.fetch.min.bytes": "1"})
    quick.create("t", (1, 2))
    quick.world.advance(1_000)
    began_ms = quick.world.now_ms
    assert quick.produce(1) == (NONE, 0)
    assert quick.world.now_ms - began_ms <= 20


def test_the_watermark_is_stored_at_its_interval() -> None:
    nodes = ReplicatedNodes({"replica.high.watermark.checkpoint.interval.ms": "700"})
    nodes.create("t", THREE)
    name = HOME / checkpoints.HIGH_WATERMARK

    def stored(number: int) -> bool:
        return b"t 0 3\n" in bytes(nodes.brokers[number].files.data.get(name, b""))

    assert nodes.produce(1, 3) == (NONE, 0)
    nodes.run_until_equal()
    began_ms = nodes.world.now_ms
    nodes.run_until(lambda: all(map(stored, THREE)), 2_000)
    assert nodes.world.now_ms - began_ms <= 710
    for number in THREE:
        nodes.brokers[number].kill()
    nodes.brokers[2].begin()
    nodes.run_until(lambda: ("t", 0) in nodes.brokers[2].broker.partitions)
    nodes.run_until(lambda: nodes.brokers[2].is_joined)
    assert nodes.partition(2).high_watermark == 3, "a restart begins there, without the leader"


@pytest.mark.parametrize("is_balanced", [False, True])
def test_the_preferred_leader_leads_again_if_a_setting_says_so(is_balanced: bool) -> None:
    settings = {
        "auto.leader.rebalance.enable": str(is_balanced).lower(), "leader.imbalance.check.interval.seconds": "10",
    }  # fmt: skip
    nodes = ReplicatedNodes(settings)
    nodes.create("t", THREE)
    nodes.brokers[1].kill()
    other = nodes.run_until_led(not_by=1)
    nodes.brokers[1].begin()
    nodes.run_until_in_sync(*THREE)
    if is_balanced:
        nodes.run_until(lambda: nodes.leader() == 1, 21_000)
    else:
        nodes.world.advance(21_000)
        assert nodes.leader() == other


def test_too_few_replicas_of_the_cluster_and_of_a_topic() -> None:
    """``min.insync.replicas`` of the brokers counts for a topic without its own; at most as many as it has replicas."""
    nodes = ReplicatedNodes({"min.insync.replicas": "3"})
    nodes.create("whole", THREE)
    nodes.create("own", THREE, min_insync_replicas="2")
    nodes.create("two", (1, 2))
    nodes.brokers[3].kill()
    nodes.run_until_in_sync(1, 2, name="whole")
    nodes.run_until_in_sync(1, 2, name="own")
    assert nodes.produce(1, name="whole")[0] is ErrorCode.not_enough_replicas
    assert nodes.produce(1, name="own") == (NONE, 0)
    assert nodes.produce(1, name="two") == (NONE, 0)
