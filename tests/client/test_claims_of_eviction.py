"""Claim 75: commits of a member that was removed from its group, with both protocols and both clients.

Apache Kafka's consumer and ours get the same commands (see parity.py). Each of the two consumers has tests of its
own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from parity import JavaConsumers, OurConsumers
from support.brokers import eventually, make_broker
from support.jvm import java_classes
from support.publish import publish

from odradek import Admin
from odradek.client import NewTopic

Side = JavaConsumers | OurConsumers
FAST = {
    "group_consumer_min_heartbeat_interval_ms": "100",
    "group_consumer_heartbeat_interval_ms": "100",
    "group_consumer_assignment_interval_ms": "0",
}


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    running = make_broker(tmp_path_factory.mktemp("quick"), **FAST)
    running.start()
    yield running.bootstrap
    running.kill()


@pytest.fixture(scope="module")
def java(kafka_cp: str) -> Iterator[JavaConsumers]:
    running = JavaConsumers(kafka_cp, java_classes(kafka_cp))
    yield running
    running.close()


@pytest.fixture
def ours() -> Iterator[OurConsumers]:
    running = OurConsumers()
    yield running
    running.close()


class Setup:
    """Consumer ``a`` reads ten records. Then ``a`` does not poll until the coordinator has removed it."""

    def __init__(self, side: Side, bootstrap: str, topic: str, group: str, protocol: str) -> None:
        self.side, self.admin, self.group, self.topic = side, Admin(bootstrap), group, topic
        self._settings = {
            "bootstrap.servers": bootstrap, "group.id": group, "group.protocol": protocol,
            "auto.offset.reset": "earliest", "enable.auto.commit": "false", "fetch.max.wait.ms": "50",
        } | ({"heartbeat.interval.ms": "100"} if protocol == "classic" else {})  # fmt: skip
        self.admin.create_topics([NewTopic(topic, 1, 1)])
        publish(bootstrap, topic, ["v"] * 10)
        self.new("a", max_poll_interval_ms=1_000)
        self.expect(f"a subscribe {topic}", "ok")
        self.expect("a read 10", f"{topic}:0=0-9")
        eventually(lambda: not self.members(), within_s=40)

    def new(self, name: str, **more: Any) -> None:
        settings = self._settings | {key.replace("_", "."): value for key, value in more.items()}
        self.expect(" ".join([name, "new", *(f"{key}={value}" for key, value in settings.items())]), "ok")

    def expect(self, line: str, answer: str) -> None:
        assert (line, self.side.run(line)) == (line, answer)

    def members(self) -> list[Any]:
        return list(self.admin.describe_groups([self.group])[self.group].members)

    def committed(self) -> list[int]:
        return [row.offset for row in self.admin.list_group_offsets(self.group).values()]

    def another_joins(self) -> None:
        self.new("b")
        self.expect(f"b subscribe {self.topic}", "ok")
        self.expect("settle settle b=1", "settled")

    def the_other_leaves(self) -> None:
        self.expect("b close", "ok")
        eventually(lambda: not self.members())

    def end(self) -> None:
        self.expect("a close", "ok")
        self.admin.close()


def classic(side: Side, bootstrap: str, topic: str, group: str) -> None:
    setup = Setup(side, bootstrap, topic, group, "classic")
    for beside_others in (False, True):
        if beside_others:
            setup.another_joins()
        setup.expect("a commit", "error CommitFailedException")
        setup.expect(f"a commit {topic}:0=5", "error CommitFailedException")
    assert setup.committed() == []
    setup.the_other_leaves()
    setup.end()


def kip848(side: Side, bootstrap: str, topic: str, group: str) -> Setup:
    """Checks that ``a`` cannot commit while ``b`` is a member. Then ``b`` leaves, and the group is empty."""
    setup = Setup(side, bootstrap, topic, group, "consumer")
    setup.another_joins()
    setup.expect("a commit", "error CommitFailedException")
    setup.expect(f"a commit {topic}:0=5", "error CommitFailedException")
    assert setup.committed() == []
    setup.the_other_leaves()
    return setup


def kip848_after_a_poll(side: Side, bootstrap: str, topic: str, group: str) -> None:
    """The poll reports the lost partitions and joins the group again. The commit then has nothing to commit and
    succeeds."""
    setup = Setup(side, bootstrap, topic, group, "consumer")
    setup.another_joins()
    setup.expect("a poll 0", "ok")
    setup.expect("a commit", "ok")
    assert setup.committed() == []
    setup.expect("b close", "ok")
    setup.end()


@pytest.mark.slow
@pytest.mark.claim(75, part="a")
def test_with_the_classic_protocol_every_commit_of_java_s_consumer_fails(
    java: JavaConsumers, bootstrap: str, topic: str, group: str
) -> None:
    classic(java, bootstrap, topic, group)


@pytest.mark.claim(75, part="a")
def test_with_the_classic_protocol_every_commit_of_our_consumer_fails(
    bootstrap: str, topic: str, group: str, ours: Side
) -> None:
    classic(ours, bootstrap, topic, group)


@pytest.mark.slow
@pytest.mark.claim(75, part="b")
def test_with_kip848_java_s_consumer_fails_beside_other_members_and_commits_in_an_empty_group(
    java: JavaConsumers, bootstrap: str, topic: str, group: str
) -> None:
    setup = kip848(java, bootstrap, topic, group)
    setup.expect("a commit", "ok")
    assert setup.committed() == [10], "the position of consumer a at its removal"
    setup.expect(f"a commit {topic}:0=5", "ok")
    assert setup.committed() == [5]
    setup.end()


@pytest.mark.claim(75, part="d")
def test_with_kip848_our_consumer_fails_in_an_empty_group_too(
    bootstrap: str, topic: str, group: str, ours: Side
) -> None:
    """Java's consumer may commit here, even an offset that is lower than the commits of members that have left."""
    setup = kip848(ours, bootstrap, topic, group)
    setup.expect("a commit", "error CommitFailedException")
    setup.expect(f"a commit {topic}:0=5", "error CommitFailedException")
    assert setup.committed() == []
    setup.end()


@pytest.mark.slow
@pytest.mark.claim(75, part="c")
def test_with_kip848_java_s_consumer_commits_nothing_after_a_poll(
    java: JavaConsumers, bootstrap: str, topic: str, group: str
) -> None:
    kip848_after_a_poll(java, bootstrap, topic, group)


@pytest.mark.claim(75, part="c")
def test_with_kip848_our_consumer_commits_nothing_after_a_poll(
    bootstrap: str, topic: str, group: str, ours: Side
) -> None:
    kip848_after_a_poll(ours, bootstrap, topic, group)
