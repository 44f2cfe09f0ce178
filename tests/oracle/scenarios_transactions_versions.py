"""Transactions at each level of the feature `transaction.version`, and changes between the levels."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import transaction_requests
from group_requests import GroupRequests
from recording import Run, Scenario
from transaction_requests import COMPLETE, UPDATE_FEATURES, initialised, opened, prepared, producers, read

from odradek.wire.api_keys import API_VERSIONS

SERIAL = True
CONFIG = transaction_requests.CONFIG
FEATURE = "transaction.version"
_LEVELS = (0, 1, 2)
_UPGRADE, _SAFE_DOWNGRADE, _UNSAFE_DOWNGRADE = 1, 2, 3


def change(level: int, kind: int, *, validate_only: bool = False) -> dict[str, Any]:
    row = {"feature": FEATURE, "max_version_level": level, "upgrade_type": kind, "allow_downgrade": False}
    return {"timeout": 10_000, "feature_updates": [row], "validate_only": validate_only}


def level_of(reply: Any) -> int:
    found = [row.max_version_level for row in reply.finalized_features if row.name == FEATURE]
    return found[0] if found else 0


def set_level(run: Run, level: int) -> None:
    """Sets the level, and waits until the broker has it. Only the new level is in the trace."""
    present = level_of(run.quietly(API_VERSIONS, 3, _ASKED))
    if level != present:
        message = change(level, _UPGRADE if level > present else _UNSAFE_DOWNGRADE)
        reply = run.quietly(UPDATE_FEATURES, 1, message)
        assert reply.error_code == 0, reply
        run.until(API_VERSIONS, 3, _ASKED, lambda found: level_of(found) == level)
    run.note("transaction.version", level, level)


_ASKED = {"client_software_name": "t", "client_software_version": "1"}


def at_each_level(run: Run, act: Callable[[str], None], levels: tuple[int, ...] = _LEVELS) -> None:
    """Calls ``act`` with a label at each level. The level is 2 afterwards."""
    try:
        for level in levels:
            set_level(run, level)
            act(f"level{level}")
    finally:
        set_level(run, 2)


def levels_changed(run: Run) -> None:
    """The changes that UpdateFeatures accepts and refuses, by version."""
    changes = list(itertools.product((0, 1, 2, 3, -1), (_UPGRADE, _SAFE_DOWNGRADE, _UNSAFE_DOWNGRADE)))

    def ask(_: str) -> None:
        for level, kind in changes:
            for version in (1, 2):
                run.call(UPDATE_FEATURES, version, change(level, kind, validate_only=True), unordered=("results",))

    at_each_level(run, ask)
    try:
        for level, kind in ((1, _SAFE_DOWNGRADE), (0, _UNSAFE_DOWNGRADE), (2, _UPGRADE), (0, _SAFE_DOWNGRADE)):
            run.call(UPDATE_FEATURES, 1, change(level, kind))
            found = run.quietly(API_VERSIONS, 3, _ASKED)
            rows = [row for row in found.finalized_features if row.name == FEATURE]
            run.note("finalized", [level, kind], [[row.min_version_level, row.max_version_level] for row in rows])
    finally:
        set_level(run, 2)


def transactions_at_each_level(run: Run) -> None:
    """Transactions with Produce 11 and 12, which end by EndTxn 4 and by EndTxn 5."""
    topic = run.topic()
    run.create(topic, 3)

    def act(label: str) -> None:
        for end, commit in itertools.product((4, 5), (True, False)):
            producer = initialised(run, f"{label}-{end}{commit:d}")
            producer.add((topic, 0), version=3)
            producer.send(topic, version=11)
            producer.send(topic, version=12)
            producer.send(topic, version=11, partition=1)
            producer.describe()
            first = producer.epoch
            for result in (commit, commit, not commit):
                producer.end_and_wait(result, version=end)
            producer.end_and_wait(commit, version=end, producer_epoch=first)
            producer.recover()
            producer.log()

    at_each_level(run, act)
    read(run, topic)
    producers(run, (topic, 0))


def partitions_added_by_the_broker_at_each_level(run: Run) -> None:
    """Requests of clients that do not look up the level: Produce 12 without AddPartitionsToTxn, TxnOffsetCommit 5
    without AddOffsetsToTxn, and AddPartitionsToTxn 5."""
    requests = GroupRequests(run)
    topic = requests.topic(partitions=2)
    run.wait_until_led(topic, 2)

    def act(label: str) -> None:
        for number, request in enumerate((
            lambda p: p.send(topic, version=12),
            lambda p: p.commit_offsets(requests.group, (topic, 0, 1)),
            lambda p: p.add((topic, 0), version=5),
        )):  # fmt: skip
            producer = initialised(run, f"{label}-{number}")
            request(producer)
            producer.describe()
            producer.add((topic, 1))
            producer.end_and_wait(True, version=4)
            producer.init()
            producer.log()

    at_each_level(run, act)
    read(run, topic)


def empty_transactions_at_each_level(run: Run) -> None:
    def act(label: str) -> None:
        for version in (4, 5):
            producer = initialised(run, f"{label}-{version}")
            for commit in (True, False, False):
                producer.end_and_wait(commit, version=version)
            producer.log()

    at_each_level(run, act)


def offsets_at_each_level(run: Run) -> None:
    """TxnOffsetCommit of each version, with and without AddOffsetsToTxn."""
    requests = GroupRequests(run)
    topic = requests.topic()

    def act(label: str) -> None:
        for version in (3, 4, 5):
            producer = initialised(run, f"{label}-{version}")
            producer.commit_offsets(requests.group, (topic, 0, 1), version=version)
            run.note("state", version, producer.state())
            producer.add_offsets(requests.group)
            producer.commit_offsets(requests.group, (topic, 0, 2), version=version)
            producer.end_and_wait(True, version=5 if version == 5 else 4)
            requests.fetch({topic: [0]}, stable=True)

    at_each_level(run, act)
    requests.log()


def new_producers_at_each_level(run: Run) -> None:
    """InitProducerId over an open transaction: the epochs of the marker and of the new producer."""
    topic = run.topic()
    run.create(topic)

    def act(label: str) -> None:
        for recover in (False, True):
            producer = opened(run, topic, f"{label}-{recover:d}", old=True)
            for _ in range(2):
                if recover:
                    producer.recover()
                else:
                    producer.init()
                producer.wait_for(*COMPLETE)
            producer.log()

    at_each_level(run, act)
    read(run, topic)
    producers(run, (topic, 0))


def timeouts_at_each_level(run: Run) -> None:
    topic = run.topic()
    run.create(topic)

    def act(label: str) -> None:
        producer = opened(run, topic, label, old=True, timeout_ms=500)
        run.pass_ms(800)
        producer.wait_for("CompleteAbort")
        producer.end(True, version=4)
        producer.end(False, version=4)
        producer.recover()
        producer.log()

    at_each_level(run, act)
    read(run, topic)


def _pairs() -> list[tuple[int, int]]:
    return [(before, after) for before, after in itertools.product(_LEVELS, _LEVELS) if before != after]


def levels_changed_in_a_transaction(run: Run) -> None:
    """The level changes between the first record and the end."""
    topic = run.topic()
    run.create(topic, 2)
    try:
        for before, after in _pairs():
            for end, commit in ((4, True), (5, False)):
                set_level(run, before)
                producer = opened(run, topic, f"{before}{after}{end}", old=before < 2)
                set_level(run, after)
                producer.send(topic, version=11)
                producer.send(topic, version=12, partition=1)
                producer.add((topic, 1))
                producer.end_and_wait(commit, version=end)
                producer.log()
                producer.send(topic, version=12)
                producer.add((topic, 0))
                producer.send(topic, version=11)
                producer.end_and_wait(commit, version=end)
                producer.log()
    finally:
        set_level(run, 2)
    for partition in (0, 1):
        read(run, topic, partition=partition)


def levels_changed_between_transactions(run: Run) -> None:
    """Repeated ends and recovery after a change. The replies show what the coordinator keeps of the previous
    transaction."""
    topic = run.topic()
    run.create(topic)
    try:
        for before, after in _pairs():
            set_level(run, before)
            end = 5 if before == 2 else 4
            producer = opened(run, topic, f"{before}{after}", old=before < 2)
            first = producer.epoch
            producer.end_and_wait(True, version=end)
            set_level(run, after)
            for version in (4, 5):
                for epoch in sorted({first, producer.epoch}):
                    producer.end_and_wait(True, version=version, producer_epoch=epoch)
            producer.recover(first)
            producer.log()
    finally:
        set_level(run, 2)


def levels_changed_while_prepared(run: Run) -> None:
    """A transaction that stays prepared: requests after a change, and the record of its state."""
    topic = run.topic()
    run.create(topic)
    try:
        for before, after in _pairs():
            set_level(run, before)
            producer = prepared(run, topic, f"{before}{after}", old=before < 2)
            set_level(run, after)
            for version in (4, 5):
                producer.end(True, version=version)
                producer.end(False, version=version)
            producer.init()
            producer.describe()
            producer.log()
    finally:
        set_level(run, 2)


SCENARIOS: tuple[Scenario, ...] = (
    levels_changed,
    transactions_at_each_level,
    partitions_added_by_the_broker_at_each_level,
    empty_transactions_at_each_level,
    offsets_at_each_level,
    new_producers_at_each_level,
    timeouts_at_each_level,
    levels_changed_in_a_transaction,
    levels_changed_between_transactions,
    levels_changed_while_prepared,
)
