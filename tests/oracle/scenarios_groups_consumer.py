"""KIP-848 groups: heartbeats step by step, epochs, assignors, static members, patterns, offsets."""

from __future__ import annotations

import uuid
from typing import Any

from group_requests import Consumer, GroupRequests, joined
from recording import Run, Scenario

STRANGER = uuid.UUID("6c1a7e0e-0000-4000-8000-0000000000dd")


def eager(run: Run, label: str = "a") -> GroupRequests:
    """A group without an assignment interval."""
    requests = GroupRequests(run, label)
    requests.set_group(consumer_assignment_interval_ms="0")
    return requests


def eager_and_topic(run: Run, partitions: int = 1) -> tuple[GroupRequests, str]:
    """A group without an assignment interval, and a topic that its coordinator knows."""
    requests = eager(run)
    return requests, requests.known_topic("a", partitions)


# --- joining ----------------------------------------------------------------------------------------------------


def a_consumer_alone(run: Run) -> None:
    requests, topic = eager_and_topic(run, 3)
    requests.inspect()
    a = joined(requests, "a", topic)
    requests.inspect()
    requests.listed()
    a.beat()
    a.confirm()
    a.confirm(rebalance_timeout=30_000, subscribed_topic_names=[topic])
    a.beat(rebalance_timeout=40_000)
    a.beat(rack_id="r1")
    requests.inspect()
    a.leave()
    requests.inspect()
    requests.listed()
    a.beat()
    requests.log()


def a_consumer_of_the_first_version(run: Run) -> None:
    requests, topic = eager_and_topic(run)
    reply = requests.join_consumer("", [topic], version=0)
    run.name_value(reply.member_id, "given id")
    requests.heartbeat(reply.member_id, reply.member_epoch, version=0)
    requests.inspect(version=0)
    requests.heartbeat("own", 0, version=0, rebalance_timeout=1000, subscribed_topic_names=[topic], owned={})
    requests.heartbeat("own", -1, version=0)
    requests.heartbeat(reply.member_id, -1, version=0)
    requests.inspect(version=0)


def invalid_consumer_heartbeats(run: Run) -> None:
    requests, topic = eager_and_topic(run)
    full: dict[str, Any] = {"rebalance_timeout": 1000, "subscribed_topic_names": [topic], "owned": {}}
    requests.heartbeat("a", 0, **full | {"group_id": ""})
    requests.heartbeat("a", 0, **full | {"group_id": "  "})
    requests.heartbeat("", 0, **full)
    requests.heartbeat("  ", 0, **full)
    requests.heartbeat("a", 0, **full | {"instance_id": ""})
    requests.heartbeat("a", 0, **full | {"rack_id": ""})
    requests.heartbeat("a", 0, **full | {"rebalance_timeout": -1})
    requests.heartbeat("a", 0, **full | {"owned": None})
    requests.heartbeat("a", 0, **full | {"owned": {STRANGER: [0]}})
    requests.heartbeat("a", 0, **full | {"subscribed_topic_names": None})
    requests.heartbeat("a", 0, **full | {"server_assignor": "sticky"})
    requests.heartbeat("a", 0, **full | {"server_assignor": ""})
    requests.heartbeat("a", -2)
    requests.heartbeat("a", -3)
    requests.heartbeat("a", -1)
    requests.heartbeat("a", -2, instance_id="i1")
    requests.heartbeat("a", 1)
    requests.heartbeat("", 1)
    requests.inspect()
    requests.join_consumer("a", [topic])
    requests.heartbeat("b", 1)
    requests.heartbeat("b", -1)
    requests.heartbeat("b", -2, instance_id="i1")
    requests.heartbeat("", -1)
    requests.heartbeat("a", -3)
    requests.heartbeat("a", 2, server_assignor="sticky")
    requests.heartbeat("a", 2, instance_id="i1")
    requests.heartbeat("a", 2, subscribed_topic_names=["a b", "", topic])
    requests.inspect()


def a_group_without_a_topic(run: Run) -> None:
    requests = eager(run)
    a = Consumer(requests, "a")
    a.join(subscribed_topic_names=[])
    requests.inspect()
    a.beat(subscribed_topic_names=[run.topic("unknown")])
    requests.inspect()
    a.join(subscribed_topic_names=[])
    requests.inspect()
    requests.log()


# --- step by step -----------------------------------------------------------------------------------------------


def two_share(run: Run) -> None:
    requests, topic = eager_and_topic(run, 4)
    a, b = Consumer(requests, "a", topic), Consumer(requests, "b", topic)
    a.join()
    requests.log()
    b.join()
    requests.inspect()
    a.beat()
    requests.inspect()
    b.beat()
    a.beat()
    a.confirm()
    requests.inspect()
    b.beat()
    requests.inspect()
    b.confirm()
    requests.log()
    a.leave()
    requests.inspect()
    b.beat()
    requests.inspect()
    requests.log()


def three_come_one_by_one(run: Run) -> None:
    requests, topic = eager_and_topic(run, 6)
    a, b, d = (Consumer(requests, name, topic) for name in "abd")
    for newcomer in (a, b, d):
        newcomer.join()
    for member in (a, b, d, a, b, d):
        member.beat()
    requests.inspect()
    a.confirm()
    requests.inspect()
    for member in (d, b, b, d):
        member.confirm()
    requests.inspect()
    b.leave()
    a.beat()
    requests.inspect()
    d.beat()
    a.beat()
    requests.inspect()
    requests.log()


def a_member_gives_up_in_steps(run: Run) -> None:
    requests, topic = eager_and_topic(run, 4)
    a, b = Consumer(requests, "a", topic), Consumer(requests, "b", topic)
    a.join()
    everything = dict(a.assigned)
    (topic_id,) = everything
    b.join()
    a.beat(owned=everything)
    a.beat(owned=everything)
    kept = set(a.assigned[topic_id])
    given_up = [index for index in everything[topic_id] if index not in kept]
    a.beat(owned={topic_id: [*kept, given_up[0]]})
    requests.inspect()
    a.beat(owned={topic_id: [*kept]})
    b.beat()
    b.beat(owned={topic_id: b.assigned[topic_id][:1]})
    b.beat(owned={STRANGER: [0], topic_id: [9]})
    requests.inspect()


def epochs_behind_and_ahead(run: Run) -> None:
    requests, topic = eager_and_topic(run, 4)
    a, b = Consumer(requests, "a", topic), Consumer(requests, "b", topic)
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
    requests.inspect()
    a.join()
    requests.inspect()
    a.join(subscribed_topic_names=[])
    b.beat()
    requests.inspect()
    requests.log()


def subscriptions_change(run: Run) -> None:
    requests = eager(run)
    one, other = requests.known_topic("one", 2), requests.known_topic("other", 2)
    a = joined(requests, "a", one)
    a.beat(subscribed_topic_names=[one, other])
    a.confirm()
    requests.inspect()
    a.beat(subscribed_topic_names=[other, one])
    a.beat(subscribed_topic_names=[other])
    requests.inspect()
    a.beat()
    a.confirm()
    requests.inspect()
    a.beat(subscribed_topic_names=[])
    a.confirm()
    requests.inspect()
    a.beat(subscribed_topic_names=[run.topic("unknown"), one, one])
    requests.inspect()
    requests.log()


# --- assignors --------------------------------------------------------------------------------------------------


def ranges_are_assigned(run: Run) -> None:
    requests, topic = eager_and_topic(run, 5)
    members = [Consumer(requests, name, topic, server_assignor="range") for name in "abd"]
    for member in members:
        member.join()
    for member in (*members, *members, *members):
        member.confirm()
    requests.inspect()
    requests.log()


def assignors_are_voted_for(run: Run) -> None:
    requests, topic = eager_and_topic(run, 4)
    a = Consumer(requests, "a", topic)
    b = Consumer(requests, "b", topic, server_assignor="range")
    d = Consumer(requests, "d", topic, server_assignor="uniform")
    for member in (a, b, d):
        member.join()
        requests.inspect()
    b.beat(server_assignor="uniform")
    requests.inspect()
    a.beat(server_assignor="range")
    b.beat(server_assignor="range")
    requests.inspect()
    b.leave()
    requests.inspect()
    requests.log()


def members_read_different_topics(run: Run) -> None:
    requests = eager(run)
    one, other = requests.known_topic("one", 2), requests.known_topic("other", 2)
    a, b, d = Consumer(requests, "a", one), Consumer(requests, "b", other), Consumer(requests, "d", one)
    for member in (a, b, d):
        member.join()
    for member in (a, b, d, a, b, d):
        member.confirm()
    requests.inspect()
    d.leave()
    a.beat()
    requests.inspect()


# --- static members ---------------------------------------------------------------------------------------------


def a_static_consumer_comes_back(run: Run) -> None:
    requests, topic = eager_and_topic(run, 2)
    a = Consumer(requests, "a", topic, instance_id="i1")
    b = Consumer(requests, "b", topic)
    a.join()
    b.join()
    for member in (a, b, a, b):
        member.confirm()
    requests.inspect()
    requests.log()
    a.leave(-2)
    requests.inspect()
    b.beat()
    a.beat()
    twin = joined(requests, "twin", topic, instance_id="i1")
    requests.inspect()
    twin.confirm()
    b.beat()
    a.beat()
    a.beat(instance_id=None)
    requests.log()
    twin.leave(-2)
    twin.join(subscribed_topic_names=[topic, run.topic("unknown")])
    requests.inspect()
    twin.leave(-1)
    requests.inspect()
    requests.log()


def a_static_consumer_is_not_released(run: Run) -> None:
    requests, topic = eager_and_topic(run, 2)
    a = joined(requests, "a", topic, instance_id="i1")
    twin = joined(requests, "twin", topic, instance_id="i1")
    twin.beat(epoch=2)
    twin.leave(-1)
    twin.leave(-2)
    a.beat(instance_id="i2")
    a.beat(instance_id=None)
    a.beat()
    a.join()
    requests.inspect()
    a.leave(-2)
    a.leave(-1, instance_id=None)
    requests.inspect()
    twin.join()
    requests.inspect()
    requests.log()


def a_static_consumer_changes_its_name(run: Run) -> None:
    requests, topic = eager_and_topic(run, 2)
    a = joined(requests, "a", topic, instance_id="i1")
    a.join(instance_id="i2")
    requests.inspect()
    a.beat()
    a.beat(instance_id="i2")
    a.leave(-2, instance_id="i2")
    requests.inspect()
    joined(requests, "twin", topic, instance_id="i2")
    requests.inspect()
    requests.log()
    joined(requests, "other", topic, instance_id="i1")


# --- patterns ---------------------------------------------------------------------------------------------------


def topics_by_pattern(run: Run) -> None:
    requests = eager(run)
    requests.known_topic("one", 2)
    other = requests.known_topic("other")
    tail = run.tag()
    a = joined(requests, "a", subscribed_topic_regex=f"topico(n|x)e-{tail}")
    requests.wait_for_epoch(2)
    requests.inspect()
    a.beat()
    a.confirm()
    requests.inspect()
    a.beat(subscribed_topic_names=[other])
    a.confirm()
    requests.inspect()
    b = joined(requests, "b", subscribed_topic_regex=f"topico(n|x)e-{tail}")
    requests.inspect()
    for member in (a, b, a, b):
        member.confirm()
    requests.inspect()
    a.beat(subscribed_topic_regex="")
    a.confirm()
    requests.inspect()
    b.leave()
    requests.inspect()
    requests.log()


def invalid_patterns(run: Run) -> None:
    requests, topic = eager_and_topic(run)
    for pattern in ("[", "(", "a{2", "*", "\\", "(?=a)", "a\\1", "(?P<", "[z-a]", "a**"):
        requests.join_consumer("a", None, subscribed_topic_regex=pattern)
    requests.inspect()
    requests.join_consumer("a", [topic], subscribed_topic_regex="(")
    requests.inspect()
    requests.join_consumer("a", [topic], subscribed_topic_regex="")
    requests.inspect()
    requests.heartbeat("a", 2, subscribed_topic_regex="(")
    requests.heartbeat("a", 2)
    requests.log()


def patterns_of_all_sorts(run: Run) -> None:
    requests = eager(run)
    requests.known_topic("one")
    requests.known_topic("other")
    tail = run.tag()
    good = ("(?i)TOPICO(?-i)ne", "(?P<name>topic)o[a-z]{2}", "(?<name>topic)o.+?", r"\Qtopicone", r"\Qtopic\Eo\w+",
            "[[:lower:]]+", "[^[:upper:]]*", r"\pL*", r"\p{Lu}*|topicone", r"^\x74\x{6f}pico\156e", "(|topicone|topic)",
            r"(?s)\Atopic.*", "(?U)topico.+", r"topicone\b", "topicx?one", "[]ot]opico[^]a]+")  # fmt: skip
    for pattern in (*(f"{begin}-{tail}" for begin in good), rf"topico\w+-{tail}\z", f"topico(ne|ther)-{tail}$"):
        m = joined(requests, "m", subscribed_topic_regex=pattern)
        requests.wait_for_epoch(m.epoch + 1)
        m.beat()
        m.leave()
    for pattern in (r"\C", r"a\8", r"\Z", r"\h", "(?#a)", "(?>a)", "a*+", "(?<=a)", "(?<!a)", "(?P=a)", "(?P<1a>)x(",
                    "(?P<a>b)(?P<a>c)", "(?P<a", "(?<a", "(?P<>a)", "(?i", "(?x)a", "(?-)a", "(?", "[[:none:]]", "[^]",
                    r"\p{None}", "a{1001}", "a{2}{3}", "[b-a]", r"\e", "{", "a)b", "+"):  # fmt: skip
        requests.join_consumer("b", None, subscribed_topic_regex=pattern)


def a_pattern_that_matches_nothing(run: Run) -> None:
    requests = eager(run)
    a = joined(requests, "a", subscribed_topic_regex="no-such-topic-anywhere")
    requests.inspect()
    a.beat()
    requests.log()
    a.leave()
    requests.inspect()


# --- offsets ----------------------------------------------------------------------------------------------------


def commits_with_epochs(run: Run) -> None:
    requests, topic = eager_and_topic(run, 4)
    a, b = Consumer(requests, "a", topic), Consumer(requests, "b", topic)
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
    requests.commit((topic, 0, 1))
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
    requests.commit((topic, 0, 11))
    requests.commit((topic, 0, 12), version=2)
    a.commit((topic, 0, 13), generation=-1)
    requests.fetch()


def fetches_with_epochs(run: Run) -> None:
    requests, topic = eager_and_topic(run)
    a = joined(requests, "a", topic)
    a.commit((topic, 0, 1))
    for member, epoch in ((None, -1), ("a", 2), ("a", 1), ("a", 3), ("a", -1), ("who", 2), ("", -1), (None, 2)):
        requests.fetch({topic: [0]}, member=member, epoch=epoch)
        requests.fetch(member=member, epoch=epoch)
    for version in (1, 5, 7, 8):
        requests.fetch({topic: [0]}, version=version)
    a.leave()
    a.fetch()
    requests.fetch()


def a_consumer_group_administered(run: Run) -> None:
    requests = eager(run)
    topic, other = requests.known_topic("a", 2), requests.known_topic("b")
    a = joined(requests, "a", topic)
    a.commit((topic, 0, 1), (topic, 1, 2))
    requests.commit((other, 0, 2), member="a", generation=2)
    requests.new_records()
    requests.delete()
    requests.delete_offsets({topic: [0], other: [0]})
    requests.fetch()
    requests.describe(0)
    requests.describe(6)
    requests.log()
    a.leave()
    requests.delete_offsets({topic: [0]})
    requests.listed(states=["empty"], types=["consumer"])
    requests.log()
    requests.delete()
    requests.log(unordered=True)
    requests.inspect()
    requests.fetch()
    requests.delete()
    a.join()
    requests.fetch()
    requests.inspect()


# --- the other protocol -----------------------------------------------------------------------------------------


def classic_calls_to_a_consumer_group(run: Run) -> None:
    requests, topic = eager_and_topic(run)
    a = joined(requests, "a", topic)
    requests.join("x", kind="connect").receive()
    run.name_value(requests.join("x", protocols=[("range", b"\0")]).receive().member_id, "member x")
    requests.join("x", protocols=[("range", b"\0")], version=3).receive()
    requests.join("x", "made-up", protocols=[("range", b"\0")]).receive()
    requests.join("x", protocols=()).receive()
    requests.join("x", kind="").receive()
    requests.join("x", "a").receive()
    requests.join("x", "who").receive()
    requests.sync("x", "a", 2).receive()
    requests.sync("x", "who", 2).receive()
    requests.beat("x", "a", 2)
    requests.beat("x", "who", 2)
    requests.leave(("a", None), ("who", None))
    requests.leave(("a", None), version=2)
    a.beat()
    requests.inspect()


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
