"""Rounds of kill -9 and SIGSTOP on processes, while topics, settings, quotas and producer ids change at all brokers.

Each acknowledged change is on every node afterwards, and no producer id is given twice.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.brokers import Wire, eventually

import odradek
from odradek.core.errors import ErrorCode
from odradek.wire.api_keys import (
    ALTER_CLIENT_QUOTAS,
    CREATE_TOPICS,
    DESCRIBE_CLIENT_QUOTAS,
    DESCRIBE_CONFIGS,
    INCREMENTAL_ALTER_CONFIGS,
    INIT_PRODUCER_ID,
    METADATA,
)

BROKERS = (1, 2, 3)
SETTINGS = {"broker.session.timeout.ms": 2_000, "broker.heartbeat.interval.ms": 200}
SETTING, QUOTA = "retention.ms", "producer_byte_rate"
REPLY_S = 5.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[odradek.Cluster]:
    with odradek.Cluster(3, config=SETTINGS) as made:
        create(made, 1, "settings")
        yield made


def ask(cluster: odradek.Cluster, broker: int, api: int, version: int, message: dict[str, Any]) -> Any:
    """Raises OSError if no reply comes."""
    with Wire(cluster.address(broker)) as wire:
        wire.socket.settimeout(REPLY_S)
        return wire.call(api, version, message)


def create(cluster: odradek.Cluster, broker: int, name: str) -> bool:
    topic = {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    reply = ask(cluster, broker, CREATE_TOPICS, 7, {"topics": [topic], "timeout": 4000, "validate_only": False})
    return reply.topics[0].error_code is ErrorCode.none


def set_setting(cluster: odradek.Cluster, broker: int, value: int) -> bool:
    change = {"name": SETTING, "config_operation": 0, "value": str(value)}
    resource = {"resource_type": 2, "resource_name": "settings", "configs": [change]}
    message = {"resources": [resource], "validate_only": False}
    return ask(cluster, broker, INCREMENTAL_ALTER_CONFIGS, 1, message).responses[0].error_code is ErrorCode.none


def set_quota(cluster: odradek.Cluster, broker: int, value: int) -> bool:
    entity = [{"entity_type": "user", "entity_name": "u"}]
    entry = {"entity": entity, "ops": [{"key": QUOTA, "value": float(value), "remove": False}]}
    reply = ask(cluster, broker, ALTER_CLIENT_QUOTAS, 1, {"entries": [entry], "validate_only": False})
    return reply.entries[0].error_code is ErrorCode.none


class Changes:
    """Threads that change the cluster, one for each kind of change. A change without a reply may have happened."""

    def __init__(self, cluster: odradek.Cluster, round_number: int) -> None:
        self.topics: set[str] = set()
        self.producer_ids: list[int] = []
        self.tried = {SETTING: [], QUOTA: []}  # type: dict[str, list[tuple[int, bool]]]
        self._cluster, self._round = cluster, round_number
        self._has_ended = threading.Event()
        steps = (self._topic, self._setting, self._quota, self._producer_id)
        self._threads = [threading.Thread(target=self._run, args=(step,), daemon=True) for step in steps]
        for thread in self._threads:
            thread.start()

    def _run(self, step: Callable[[int, int], None]) -> None:
        number = 0
        while not self._has_ended.is_set():
            number += 1
            try:
                step(BROKERS[number % 3], self._round * 100_000 + number)
            except (OSError, EOFError):
                self._has_ended.wait(0.05)

    def _topic(self, broker: int, number: int) -> None:
        if create(self._cluster, broker, f"t{number}"):
            self.topics.add(f"t{number}")
        self._has_ended.wait(0.05)

    def _setting(self, broker: int, number: int) -> None:
        self._try(SETTING, number, lambda: set_setting(self._cluster, broker, number))

    def _quota(self, broker: int, number: int) -> None:
        self._try(QUOTA, number, lambda: set_quota(self._cluster, broker, number))

    def _try(self, kind: str, number: int, change: Callable[[], bool]) -> None:
        is_acknowledged = False
        try:
            is_acknowledged = change()
        finally:
            self.tried[kind].append((number, is_acknowledged))
        self._has_ended.wait(0.02)

    def _producer_id(self, broker: int, number: int) -> None:
        message = {"transactional_id": None, "transaction_timeout": 1000, "producer_id": -1, "producer_epoch": -1}
        reply = ask(self._cluster, broker, INIT_PRODUCER_ID, 4, message)
        if reply.error_code is ErrorCode.none:
            self.producer_ids.append(reply.producer_id)
        self._has_ended.wait(0.01)

    def end(self) -> None:
        self._has_ended.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()

    def possible(self, kind: str) -> set[int]:
        """The values that may hold: the last acknowledged one, and those without a reply, before it, too.

        A broker that was halted, or whose controller was away, forwards such a change later, also after a change that
        another broker has passed on."""
        last = max((number for number, is_acknowledged in self.tried[kind] if is_acknowledged), default=0)
        return {last} | {number for number, is_acknowledged in self.tried[kind] if not is_acknowledged}


def disturb(cluster: odradek.Cluster, dice: random.Random) -> None:
    """Ends or halts one node, and brings it back."""
    node = dice.choice([*BROKERS, "controller", "controller"])
    if dice.random() < 0.5:
        cluster.kill(node)
        threading.Event().wait(dice.uniform(0, 1.0))
        cluster.start(node)
    else:
        cluster.pause(node)
        threading.Event().wait(dice.uniform(0, 3.0))
        cluster.resume(node)


def topics_at(cluster: odradek.Cluster, broker: int) -> list[str]:
    message = {"topics": None, "allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
    return [topic.name for topic in ask(cluster, broker, METADATA, 12, message).topics]


def setting_at(cluster: odradek.Cluster, broker: int) -> int:
    resource = {"resource_type": 2, "resource_name": "settings", "configuration_keys": [SETTING]}
    message = {"resources": [resource], "include_synonyms": False, "include_documentation": False}
    return int(ask(cluster, broker, DESCRIBE_CONFIGS, 4, message).results[0].configs[0].value)


def quota_at(cluster: odradek.Cluster, broker: int) -> int:
    component = {"entity_type": "user", "match_type": 0, "match": "u"}
    reply = ask(cluster, broker, DESCRIBE_CLIENT_QUOTAS, 1, {"components": [component], "strict": True})
    return int(reply.entries[0].values[0].value)


def check(cluster: odradek.Cluster, changes: Changes) -> None:
    """All nodes agree, and have what was acknowledged."""

    def agree() -> bool:
        seen = [(sorted(topics_at(cluster, one)), setting_at(cluster, one), quota_at(cluster, one)) for one in BROKERS]
        return seen[0] == seen[1] == seen[2]

    eventually(agree, within_s=60, what="all brokers have the same catalogue")
    names = topics_at(cluster, 1)
    assert len(names) == len(set(names))
    assert changes.topics <= set(names)
    assert setting_at(cluster, 1) in changes.possible(SETTING)
    assert quota_at(cluster, 1) in changes.possible(QUOTA)
    assert len(changes.producer_ids) == len(set(changes.producer_ids))


def play(cluster: odradek.Cluster, rounds: range) -> None:
    given: set[int] = set()
    acknowledged: set[str] = set()
    for number in rounds:
        dice = random.Random(number)
        changes = Changes(cluster, number)
        for _ in range(2):
            threading.Event().wait(dice.uniform(0.1, 0.5))
            disturb(cluster, dice)
        eventually(
            lambda changes=changes: all(any(ok for _, ok in tried) for tried in changes.tried.values()), within_s=60
        )
        changes.end()
        check(cluster, changes)
        assert given.isdisjoint(changes.producer_ids)
        given |= set(changes.producer_ids)
        acknowledged |= changes.topics
        assert acknowledged <= set(topics_at(cluster, 2))
    assert given
    assert acknowledged


def test_each_acknowledged_change_is_on_every_node(cluster: odradek.Cluster) -> None:
    play(cluster, range(1, 5))


@pytest.mark.slow
def test_many_rounds(cluster: odradek.Cluster) -> None:
    play(cluster, range(5, 105))
