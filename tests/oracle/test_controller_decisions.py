"""Elections, placement and sessions are decided as the controller of Apache Kafka 4.3 has decided them.

``record_controller`` has recorded the cases.
"""

from __future__ import annotations

import json
from collections.abc import MutableSequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from odradek.catalog.registrations import PartitionRegistration
from odradek.cluster.nodes.sessions import NEVER, BrokerHeartbeat, BrokerSessions
from odradek.cluster.partitions.elections import Election, ElectionRules, partition_change
from odradek.cluster.partitions.placement import UsableBroker, place
from odradek.core.errors import ErrorCode, KafkaError

TRACE = Path(__file__).resolve().parent / "traces" / "controller_decisions.jsonl"
TOPIC = UUID(int=1)
EPOCH, REGISTERED_AT, SESSION_MS = 5, 15, 9000


def cases(kind: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in TRACE.read_text().splitlines()]
    return [one for one in found if one["case"] == kind]


def test_elections_and_isr_changes_are_kafkas() -> None:
    compared = cases("election")
    assert len(compared) == 1000
    for case in compared:
        partition = PartitionRegistration(
            0, tuple(case["replicas"]), tuple(case["isr"]), case["leader"], 7, 9, int(case["recovering"]), (), (), (),
            tuple(case["elr"]), tuple(case["last_known_elr"]),
        )  # fmt: skip
        rules = ElectionRules(
            case["alive"].__contains__, case["min_isr"], case["eligible"], Election[case["election"]], case["unclean"]
        )
        made = partition_change(TOPIC, partition, tuple(case["target"]), rules)
        if case["change"] is None:
            assert made is None, case
            continue
        assert made is not None, case
        expected = {name: tuple(value) if isinstance(value, list) else value for name, value in case["change"].items()}
        found = {name: getattr(made, name) for name in expected}
        assert found == expected, case
        assert (made.replicas, made.removing, made.adding, made.directories) == (None, None, None, None)


class SameNumber:
    """Gives the same number each time, as the generator of the recorded cases. Shuffles like Java's collections."""

    def __init__(self, number: int) -> None:
        self._number = number

    def randrange(self, stop: int, /) -> int:
        return self._number % stop

    def shuffle(self, values: MutableSequence[Any], /) -> None:
        for size in range(len(values), 1, -1):
            other = self.randrange(size)
            values[size - 1], values[other] = values[other], values[size - 1]


def test_replicas_are_placed_as_in_kafka() -> None:
    compared = cases("placement")
    assert len(compared) == 250
    for case in compared:
        brokers = [UsableBroker(*row) for row in case["brokers"]]
        dice = SameNumber(case["number"])
        if isinstance(case["placed"], str):
            with pytest.raises(KafkaError) as raised:
                place(case["partitions"], case["factor"], brokers, dice)
            assert raised.value.code is ErrorCode.invalid_replication_factor, case
            continue
        placed = list(place(case["partitions"], case["factor"], brokers, dice))
        assert placed == [tuple(replicas) for replicas in case["placed"]], case


def test_sessions_go_through_kafkas_states() -> None:
    compared = cases("session")
    assert len(compared) == 100
    for case in compared:
        _replay(case["steps"])


def _replay(steps: list[list[Any]]) -> None:
    sessions, now_ms = BrokerSessions(SESSION_MS), 1000
    for number, (kind, *values) in enumerate(steps):
        place_of_step = f"step {number} of {steps[: number + 1]}"
        if kind == "register":
            sessions.register(values[0], is_fenced=values[1])
        elif kind == "remove":
            sessions.remove(values[0])
        elif kind == "wait":
            now_ms += values[1]
            assert sessions.is_valid(values[0], EPOCH, now_ms) == values[2], place_of_step
        elif kind == "expire":
            over = []
            while (session := sessions.end_one(now_ms)) is not None:
                sessions.fence(session[0])
                over.append(session[0])
            assert sorted(over) == values[0], place_of_step
        else:
            broker, offset, fence, shutdown, leads, end, before, after, shutdown_offset, lowest = values
            sessions.hear(broker, EPOCH, now_ms)
            request = BrokerHeartbeat(broker, EPOCH, offset, fence, shutdown)
            states = sessions.next_state(request, REGISTERED_AT, lambda leads=leads: leads)
            assert [state.name for state in states] == [before, after], place_of_step
            sessions.touch(broker, is_fenced=states[1].is_fenced, metadata_offset=offset)
            if states[1].name == "CONTROLLED_SHUTDOWN":
                sessions.begin_shutdown(broker, end)
            assert sessions.shutdown_offset(broker) == shutdown_offset, place_of_step
            assert sessions.lowest_active_offset() == (NEVER if lowest is None else lowest), place_of_step
