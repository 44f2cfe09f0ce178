"""KIP-848 groups: heartbeats step by step, epochs, assignors, static members, patterns, offsets."""

from __future__ import annotations

import uuid
from typing import Any

from group_requests import Consumer, Talk, joined
from recording import Run, Scenario

STRANGER = uuid.UUID("6c1a7e0e-0000-4000-8000-0000000000dd")


def eager(run: Run, label: str = "a") -> Talk:
    """A group without an assignment interval."""
    talk = Talk(run, label)
    talk.set_group(consumer_assignment_interval_ms="0")
    return talk


def eager_and_topic(run: Run, partitions: int = 1) -> tuple[Talk, str]:
    """A group without an assignment interval, and a topic that its coordinator knows."""
    talk = eager(run)
    return talk, talk.known_topic("a", partitions)


# --- joining ----------------------------------------------------------------------------------------------------


def a_consumer_alone(run: Run) -> None:
    talk, topic = eager_and_topic(run, 3)
    talk.inspect()
    a = joined(talk, "a", topic)
    talk.inspect()
    talk.listed()
    a.beat()
    a.confirm()
    a.confirm(rebalance_timeout=30_000, subscribed_topic_names=[topic])
    a.beat(rebalance_timeout=40_000)
    a.beat(rack_id="r1")
    talk.inspect()
    a.leave()
    talk.inspect()
    talk.listed()
    a.beat()
    talk.log()


def a_consumer_of_the_first_version(run: Run) -> None:
    talk, topic = eager_and_topic(run)
    reply = talk.join_consumer("", [topic], version=0)
    run.name_value(reply.member_id, "given id")
    talk.heartbeat(reply.member_id, reply.member_epoch, version=0)
    talk.inspect(version=0)
    talk.heartbeat("own", 0, version=0, rebalance_timeout=1000, subscribed_topic_names=[topic], owned={})
    talk.heartbeat("own", -1, version=0)
    talk.heartbeat(reply.member_id, -1, version=0)
    talk.inspect(version=0)


def invalid_consumer_heartbeats(run: Run) -> None:
    talk, topic = eager_and_topic(run)
    full: dict[str, Any] = {"rebalance_timeout": 1000, "subscribed_topic_names": [topic], "owned": {}}
    talk.heartbeat("a", 0, **full | {"group_id": ""})
    talk.heartbeat("a", 0, **full | {"group_id": "  "})
    talk.heartbeat("", 0, **full)
    talk.heartbeat("  ", 0, **full)
    talk.heartbeat("a", 0, **full | {"instance_id": ""})
    talk.heartbeat("a", 0, **full | {"rack_id": ""})
    talk.heartbeat("a", 0, **full | {"rebalance_timeout": -1})
    talk.heartbeat("a", 0, **full | {"owned": None})
    talk.heartbeat("a", 0, **full | {"owned": {STRANGER: [0]}})
    talk.heartbeat("a", 0, **full | {"subscribed_topic_names": None})
    talk.heartbeat("a", 0, **full | {"server_assignor": "sticky"})
    talk.heartbeat("a", 0, **full | {"server_assignor": ""})
    talk.heartbeat("a", -2)
    talk.heartbeat("a", -3)
    talk.heartbeat("a", -1)
    talk.heartbeat("a", -2, instance_id="i1")
    talk.heartbeat("a", 1)
    talk.heartbeat("", 1)
    talk.inspect()
    talk.join_consumer("a", [topic])
    talk.heartbeat("b", 1)
    talk.heartbeat("b", -1)
    talk.heartbeat("b", -2, instance_id="i1")
    talk.heartbeat("", -1)
    talk.heartbeat("a", -3)
    talk.heartbeat("a", 2, server_assignor="sticky")
    talk.heartbeat("a", 2, instance_id="i1")
    talk.heartbeat("a", 2, subscribed_topic_names=["a b", "", topic])
    talk.inspect()


def a_group_without_a_topic(run: Run) -> None:
    talk = eager(run)
    a = Consumer(talk, "a")
    a.join(subscribed_topic_names=[])
    talk.inspect()
    a.beat(subscribed_topic_names=[run.topic("unknown")])
    talk.inspect()
    a.join(subscribed_topic_names=[])
    talk.inspect()
    talk.log()


# --- step by step -----------------------------------------------------------------------------------------------


def two_share(run: Run) -> None:
    talk, topic = eager_and_topic(run, 4)
    a, b = Consumer(talk, "a", topic), Consumer(talk, "b", topic)
    a.join()
    talk.log()
    b.join()
    talk.inspect()
    a.beat()
    talk.inspect()
    b.beat()
    a.beat()
    a.confirm()
    talk.inspect()
    b.beat()
    talk.inspect()
    b.confirm()
    talk.log()
    a.leave()
    talk.inspect()
    b.beat()
    talk.inspect()
    talk.log()


def three_come_one_by_one(run: Run) -> None:
    talk, topic = eager_and_topic(run, 6)
    a, b, d = (Consumer(talk, name, topic) for name in "abd")
    for newcomer in (a, b, d):
        newcomer.join()
    for member in (a, b, d, a, b, d):
        member.beat()
    talk.inspect()
    a.confirm()
    talk.inspect()
    for member in (d, b, b, d):
        member.confirm()
    talk.inspect()
    b.leave()
    a.beat()
    talk.inspect()
    d.beat()
    a.beat()
    talk.inspect()
    talk.log()


def a_member_gives_up_in_steps(run: Run) -> None:
    talk, topic = eager_and_topic(run, 4)
    a, b = Consumer(talk, "a", topic), Consumer(talk, "b", topic)
    a.join()
    everything = dict(a.assigned)
    (topic_id,) = everything
    b.join()
    a.beat(owned=everything)
    a.beat(owned=everything)
    kept = set(a.assigned[topic_id])
    given_up = [index for index in everything[topic_id] if index not in kept]
    a.beat(owned={topic_id: [*kept, given_up[0]]})
    talk.inspect()
    a.beat(owned={topic_id: [*kept]})
    b.beat()
    b.beat(owned={topic_id: b.assigned[topic_id][:1]})
    b.beat(owned={STRANGER: [0], topic_id: [9]})
    talk.inspect()


def epochs_behind_and_ahead(run: Run) -> None:
    talk, topic = eager_and_topic(run, 4)
    a, b = Consumer(talk, "a", topic), Consumer(talk, "b", topic)
    a.join()
    a.beat(epoch=a.epoch + 1)
    a.beat(epoch=a.epoch - 1)
    a.beat(epoch=a.epoch - 1, owned={})
    everything = dict(a.assigned)
    b.join()
    a.beat()
    a.beat(epoch=2)
    a.confirm()
    before = a.epoch - 1
    a.beat(epoch=before)
    a.beat(epoch=before, owned=a.assigned)
    a.beat(epoch=before, owned={})
    a.beat(epoch=before, owned=everything)
    a.beat(epoch=1, owned={})
    a.beat(epoch=a.epoch + 5)
    talk.inspect()
    a.join()
    talk.inspect()
    a.join(subscribed_topic_names=[])
    b.beat()
    talk.inspect()
    talk.log()


def subscriptions_change(run: Run) -> None:
    talk = eager(run)
    one, other = talk.known_topic("one", 2), talk.known_topic("other", 2)
    a = joined(talk, "a", one)
    a.beat(subscribed_topic_names=[one, other])
    a.confirm()
    talk.inspect()
    a.beat(subscribed_topic_names=[other, one])
    a.beat(subscribed_topic_names=[other])
    talk.inspect()
    a.beat()
    a.confirm()
    talk.inspect()
    a.beat(subscribed_topic_names=[])
    a.confirm()
    talk.inspect()
    a.beat(subscribed_topic_names=[run.topic("unknown"), one, one])
    talk.inspect()
    talk.log()


# --- assignors --------------------------------------------------------------------------------------------------


def ranges_are_assigned(run: Run) -> None:
    talk, topic = eager_and_topic(run, 5)
    members = [Consumer(talk, name, topic, server_assignor="range") for name in "abd"]
    for member in members:
        member.join()
    for member in (*members, *members, *members):
        member.confirm()
    talk.inspect()
    talk.log()


def assignors_are_voted_for(run: Run) -> None:
    talk, topic = eager_and_topic(run, 4)
    a = Consumer(talk, "a", topic)
    b = Consumer(talk, "b", topic, server_assignor="range")
    d = Consumer(talk, "d", topic, server_assignor="uniform")
    for member in (a, b, d):
        member.join()
        talk.inspect()
    b.beat(server_assignor="uniform")
    talk.inspect()
    a.beat(server_assignor="range")
    b.beat(server_assignor="range")
    talk.inspect()
    b.leave()
    talk.inspect()
    talk.log()


def members_read_different_topics(run: Run) -> None:
    talk = eager(run)
    one, other = talk.known_topic("one", 2), talk.known_topic("other", 2)
    a, b, d = Consumer(talk, "a", one), Consumer(talk, "b", other), Consumer(talk, "d", one)
    for member in (a, b, d):
        member.join()
    for member in (a, b, d, a, b, d):
        member.confirm()
    talk.inspect()
    d.leave()
    a.beat()
    talk.inspect()


# --- static members ---------------------------------------------------------------------------------------------


def a_static_consumer_comes_back(run: Run) -> None:
    talk, topic = eager_and_topic(run, 2)
    a = Consumer(talk, "a", topic, instance_id="i1")
    b = Consumer(talk, "b", topic)
    a.join()
    b.join()
    for member in (a, b, a, b):
        member.confirm()
    talk.inspect()
    talk.log()
    a.leave(-2)
    talk.inspect()
    b.beat()
    a.beat()
    twin = joined(talk, "twin", topic, instance_id="i1")
    talk.inspect()
    twin.confirm()
    b.beat()
    a.beat()
    a.beat(instance_id=None)
    talk.log()
    twin.leave(-2)
    twin.join(subscribed_topic_names=[topic, run.topic("unknown")])
    talk.inspect()
    twin.leave(-1)
    talk.inspect()
    talk.log()


def a_static_consumer_is_not_released(run: Run) -> None:
    talk, topic = eager_and_topic(run, 2)
    a = joined(talk, "a", topic, instance_id="i1")
    twin = joined(talk, "twin", topic, instance_id="i1")
    twin.beat(epoch=2)
    twin.leave(-1)
    twin.leave(-2)
    a.beat(instance_id="i2")
    a.beat(instance_id=None)
    a.beat()
    a.join()
    talk.inspect()
    a.leave(-2)
    a.leave(-1, instance_id=None)
    talk.inspect()
    twin.join()
    talk.inspect()
    talk.log()


def a_static_consumer_changes_its_name(run: Run) -> None:
    talk, topic = eager_and_topic(run, 2)
    a = joined(talk, "a", topic, instance_id="i1")
    a.join(instance_id="i2")
    talk.inspect()
    a.beat()
    a.beat(instance_id="i2")
    a.leave(-2, instance_id="i2")
    talk.inspect()
    joined(talk, "twin", topic, instance_id="i2")
    talk.inspect()
    talk.log()
    joined(talk, "other", topic, instance_id="i1")


# --- patterns ---------------------------------------------------------------------------------------------------


def topics_by_pattern(run: Run) -> None:
    talk = eager(run)
    talk.known_topic("one", 2)
    other = talk.known_topic("other")
    tail = run.tag()
    a = joined(talk, "a", subscribed_topic_regex=f"topico(n|x)e-{tail}")
    talk.wait_for_epoch(2)
    talk.inspect()
    a.beat()
    a.confirm()
    talk.inspect()
    a.beat(subscribed_topic_names=[other])
    a.confirm()
    talk.inspect()
    b = joined(talk, "b", subscribed_topic_regex=f"topico(n|x)e-{tail}")
    talk.inspect()
    for member in (a, b, a, b):
        member.confirm()
    talk.inspect()
    a.beat(subscribed_topic_regex="")
    a.confirm()
    talk.inspect()
    b.leave()
    talk.inspect()
    talk.log()


def invalid_patterns(run: Run) -> None:
    talk, topic = eager_and_topic(run)
    for pattern in ("[", "(", "a{2", "*", "\\", "(?=a)", "a\\1", "(?P<", "[z-a]", "a**"):
        talk.join_consumer("a", None, subscribed_topic_regex=pattern)
    talk.inspect()
    talk.join_consumer("a", [topic], subscribed_topic_regex="(")
    talk.inspect()
    talk.join_consumer("a", [topic], subscribed_topic_regex="")
    talk.inspect()
    talk.heartbeat("a", 2, subscribed_topic_regex="(")
    talk.heartbeat("a", 2)
    talk.log()


def patterns_of_all_sorts(run: Run) -> None:
    talk = eager(run)
    talk.known_topic("one")
    talk.known_topic("other")
    tail = run.tag()
    good = ("(?i)TOPICO(?-i)ne", "(?P<name>topic)o[a-z]{2}", "(?<name>topic)o.+?", r"\Qtopicone", r"\Qtopic\Eo\w+",
            "[[:lower:]]+", "[^[:upper:]]*", r"\pL*", r"\p{Lu}*|topicone", r"^\x74\x{6f}pico\156e", "(|topicone|topic)",
            r"(?s)\Atopic.*", "(?U)topico.+", r"topicone\b", "topicx?one", "[]ot]opico[^]a]+")  # fmt: skip
    for pattern in (*(f"{begin}-{tail}" for begin in good), rf"topico\w+-{tail}\z", f"topico(ne|ther)-{tail}$"):
        m = joined(talk, "m", subscribed_topic_regex=pattern)
        talk.wait_for_epoch(m.epoch + 1)
        m.beat()
        m.leave()
    for pattern in (r"\C", r"a\8", r"\Z", r"\h", "(?#a)", "(?>a)", "a*+", "(?<=a)", "(?<!a)", "(?P=a)", "(?P<1a>)x(",
                    "(?P<a>b)(?P<a>c)", "(?P<a", "(?<a", "(?P<>a)", "(?i", "(?x)a", "(?-)a", "(?", "[[:none:]]", "[^]",
                    r"\p{None}", "a{1001}", "a{2}{3}", "[b-a]", r"\e", "{", "a)b", "+"):  # fmt: skip
        talk.join_consumer("b", None, subscribed_topic_regex=pattern)


def a_pattern_that_matches_nothing(run: Run) -> None:
    talk = eager(run)
    a = joined(talk, "a", subscribed_topic_regex="no-such-topic-anywhere")
    talk.inspect()
    a.beat()
    talk.log()
    a.leave()
    talk.inspect()


# --- offsets ----------------------------------------------------------------------------------------------------


def commits_with_epochs(run: Run) -> None:
    talk, topic = eager_and_topic(run, 4)
    a, b = Consumer(talk, "a", topic), Consumer(talk, "b", topic)
    a.join()
    (topic_id,) = a.assigned
    for version in range(2, 11):
        row = ((topic_id if version >= 10 else topic), 0, version)
        a.commit(row, version=version)
    a.commit((topic, 0, 1), generation=1)
    a.commit((topic, 0, 1), generation=3)
    a.commit((topic, 0, 1), generation=-1)
    a.commit((topic, 0, 1), member="")
    a.commit((topic, 0, 1), member="who")
    talk.commit((topic, 0, 1))
    a.commit((topic, 0, 2), (topic, 9, 2), instance="i1")
    a.fetch()
    b.join()
    a.commit((topic, 0, 3))
    a.beat()
    a.commit((topic, 0, 4), (topic, 3, 4))
    a.confirm()
    a.commit((topic, 0, 5), generation=2)
    a.commit((topic, 0, 5), (topic, 3, 5), generation=2)
    a.commit((topic, 3, 6), generation=2)
    a.commit((topic, 3, 7))
    b.beat()
    b.commit((topic, 3, 8), (topic, 2, 8))
    b.commit((topic, 3, 9), generation=2)
    a.fetch()
    a.leave()
    b.leave()
    a.commit((topic, 0, 10))
    talk.commit((topic, 0, 11))
    talk.commit((topic, 0, 12), version=2)
    a.commit((topic, 0, 13), generation=-1)
    talk.fetch()


def fetches_with_epochs(run: Run) -> None:
    talk, topic = eager_and_topic(run)
    a = joined(talk, "a", topic)
    a.commit((topic, 0, 1))
    for member, epoch in ((None, -1), ("a", 2), ("a", 1), ("a", 3), ("a", -1), ("who", 2), ("", -1), (None, 2)):
        talk.fetch({topic: [0]}, member=member, epoch=epoch)
        talk.fetch(member=member, epoch=epoch)
    for version in (1, 5, 7, 8):
        talk.fetch({topic: [0]}, version=version)
    a.leave()
    a.fetch()
    talk.fetch()


def a_consumer_group_administered(run: Run) -> None:
    talk = eager(run)
    topic, other = talk.known_topic("a", 2), talk.known_topic("b")
    a = joined(talk, "a", topic)
    a.commit((topic, 0, 1), (topic, 1, 2))
    talk.commit((other, 0, 2), member="a", generation=2)
    talk.new_records()
    talk.delete()
    talk.delete_offsets({topic: [0], other: [0]})
    talk.fetch()
    talk.describe(0)
    talk.describe(6)
    talk.log()
    a.leave()
    talk.delete_offsets({topic: [0]})
    talk.listed(states=["empty"], types=["consumer"])
    talk.log()
    talk.delete()
    talk.log(unordered=True)
    talk.inspect()
    talk.fetch()
    talk.delete()
    a.join()
    talk.fetch()
    talk.inspect()


# --- the other protocol -----------------------------------------------------------------------------------------


def classic_calls_to_a_consumer_group(run: Run) -> None:
    talk, topic = eager_and_topic(run)
    a = joined(talk, "a", topic)
    talk.join("x", kind="connect").receive()
    run.name_value(talk.join("x", protocols=[("range", b"\0")]).receive().member_id, "member x")
    talk.join("x", protocols=[("range", b"\0")], version=3).receive()
    talk.join("x", "made-up", protocols=[("range", b"\0")]).receive()
    talk.join("x", protocols=()).receive()
    talk.join("x", kind="").receive()
    talk.join("x", "a").receive()
    talk.join("x", "who").receive()
    talk.sync("x", "a", 2).receive()
    talk.sync("x", "who", 2).receive()
    talk.beat("x", "a", 2)
    talk.beat("x", "who", 2)
    talk.leave(("a", None), ("who", None))
    talk.leave(("a", None), version=2)
    a.beat()
    talk.inspect()


SCENARIOS: tuple[Scenario, ...] = (
    a_consumer_alone,
    a_consumer_of_the_first_version,
    invalid_consumer_heartbeats,
    a_group_without_a_topic,
    two_share,
    three_come_one_by_one,
    a_member_gives_up_in_steps,
    epochs_behind_and_ahead,
    subscriptions_change,
    ranges_are_assigned,
    assignors_are_voted_for,
    members_read_different_topics,
    a_static_consumer_comes_back,
    a_static_consumer_is_not_released,
    a_static_consumer_changes_its_name,
    topics_by_pattern,
    invalid_patterns,
    patterns_of_all_sorts,
    a_pattern_that_matches_nothing,
    commits_with_epochs,
    fetches_with_epochs,
    a_consumer_group_administered,
    classic_calls_to_a_consumer_group,
)
