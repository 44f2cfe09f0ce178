"""Two drivers of one transform, or of one exactly-once replay: the first is stopped or killed at each step of a
transaction, the second one runs to its end, and a stopped first one goes on. Each row is there once for
read_committed, and the group has exactly the rows that are there."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from driver_child import CALLS, ORIGIN
from support.brokers import unique
from support.publish import create_topic
from test_two_drivers import PATIENT
from two_drivers import Driver, ReplayedTopicRounds, TopicRounds

from odradek.client.admin import Admin

pytestmark = pytest.mark.slow
STEPS = [(name, when) for name in CALLS for when in ("before", "after")]
ENDED = (
    "has taken it over",
    "another run has written micro-batch",
    "another driver",
    "another run of this replay has sent records since this one began",
)
"""What a driver says after another one has worked: the transaction is fenced, Spark finds another checkpoint, or the
progress is another one. No line may name an older copy of the checkpoint or of the brokers."""


@pytest.fixture(scope="module")
def drivers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Driver, Driver]]:
    place = tmp_path_factory.mktemp("drivers")
    both = Driver(place / "first", PATIENT), Driver(place / "second", PATIENT)
    yield both
    for one in both:
        one.go_on()
        one.kill()


@pytest.mark.parametrize("sent", ["STOP", "KILL"])
@pytest.mark.parametrize("job", ["transform", "replay"])
def test_each_step_of_a_transaction(
    job: str, sent: str, drivers: tuple[Driver, Driver], bootstrap: str, admin: Admin, tmp_path: Path
) -> None:
    topic, target = unique("two"), unique("rows")
    create_topic(bootstrap, topic, 2)
    create_topic(bootstrap, target, 3)
    given: dict[str, Any] = {"job": job, "bootstrap_servers": bootstrap, "topics": topic, "to_topic": target}
    if job == "replay":
        given |= {"exactly_once": True, "batch_size": "500"}
    else:
        given |= {"group": unique("g"), "checkpoint": str(tmp_path / "checkpoint")}
        given |= {"sql": f"SELECT {ORIGIN} FROM records", "options": {"maxOffsetsPerTrigger": "60"}}
    rounds = (ReplayedTopicRounds if job == "replay" else TopicRounds)(tmp_path, admin, drivers, given)
    (first, second), rng = drivers, random.Random(7)
    for operation, when in STEPS if sent == "STOP" else STEPS[4:]:
        rounds.publish(rng)
        rounds.say(f"{sent} {when} {operation}")
        try:
            assert first.begin_and_halt(rounds.given, operation, when, sent), rounds.history
            said = second.run(rounds.given)
            rounds.say(f"second: {said}")
            assert "error" not in said, rounds.history
            rounds.check(is_complete=True)
        finally:
            first.go_on()
        if sent == "STOP":
            said = first.result()
            rounds.say(f"first: {said}")
            assert "\n" not in said.get("error", "")
            assert "error" not in said or any(why in said["error"] for why in ENDED), said
        rounds.check(is_complete=True)
        rounds.say(f"last: {second.run(rounds.given)}")
        rounds.check(is_complete=True)
        print(rounds.history[-4:], flush=True)
