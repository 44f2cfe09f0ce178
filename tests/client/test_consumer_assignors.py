"""The assignors of classic groups: expected assignments from the claims, and the properties of all assignments."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.client.group.assignors import (
    Assignments,
    Assignor,
    CooperativeStickyAssignor,
    RangeAssignor,
    RoundRobinAssignor,
    StickyAssignor,
    make_assignors,
)
from odradek.codecs.consumer_protocol import (
    Subscription,
    decode_sticky_memory,
    decode_subscription,
    encode_sticky_memory,
    encode_subscription,
)
from odradek.core.errors import ConfigError
from odradek.core.ids import TopicPartition


def numbers(assignment: Assignments) -> dict[str, list[int]]:
    return {member: [tp.partition for tp in rows] for member, rows in assignment.items()}


def same(*members: str, topics: tuple[str, ...] = ("t",)) -> dict[str, Subscription]:
    return {member: Subscription(topics) for member in members}


@pytest.mark.claim(66)
def test_range_gives_five_partitions_to_two_members() -> None:
    assert numbers(RangeAssignor().assign(same("a", "b"), {"t": 5})) == {"a": [0, 1, 2], "b": [3, 4]}


def test_range_counts_each_topic_by_itself() -> None:
    assignment = RangeAssignor().assign(same("a", "b", topics=("t", "u")), {"t": 3, "u": 3})
    assert assignment["a"] == [("t", 0), ("t", 1), ("u", 0), ("u", 1)]
    assert assignment["b"] == [("t", 2), ("u", 2)]


@pytest.mark.claim(67)
def test_round_robin_gives_five_partitions_to_two_members() -> None:
    assert numbers(RoundRobinAssignor().assign(same("a", "b"), {"t": 5})) == {"a": [0, 2, 4], "b": [1, 3]}


def test_round_robin_skips_members_without_the_topic() -> None:
    members = {"a": Subscription(("t",)), "b": Subscription(("t", "u"))}
    assignment = RoundRobinAssignor().assign(members, {"t": 2, "u": 2, "unread": 3})
    assert assignment == {"a": [("t", 0)], "b": [("t", 1), ("u", 0), ("u", 1)]}


@pytest.mark.claim(68, part="b")
def test_sticky_distributes_evenly_without_an_earlier_assignment() -> None:
    assert numbers(StickyAssignor().assign(same("a", "b"), {"t": 5})) == {"a": [0, 2, 4], "b": [1, 3]}


@pytest.mark.claim(68, part="a")
def test_sticky_keeps_the_partitions_of_members() -> None:
    def member(*held: int) -> Subscription:
        return Subscription(("t",), encode_sticky_memory([TopicPartition("t", n) for n in held], 3))

    assignment = numbers(StickyAssignor().assign({"a": member(0, 3, 4), "b": member(1, 2), "c": member()}, {"t": 5}))
    assert sorted(map(len, assignment.values())) == [1, 2, 2]
    assert set(assignment["a"]) < {0, 3, 4}
    assert assignment["b"] == [1, 2]
    alone = numbers(StickyAssignor().assign({"a": member(0, 3, 4)}, {"t": 5}))
    assert alone == {"a": [0, 1, 2, 3, 4]}


def test_a_partition_with_two_owners_stays_with_the_owner_of_the_newer_generation() -> None:
    def member(generation: int) -> Subscription:
        return Subscription(("t",), b"", (TopicPartition("t", 0),), generation)

    assignment = numbers(CooperativeStickyAssignor().assign({"a": member(4), "b": member(5)}, {"t": 2}))
    assert assignment["b"] == [0]


def test_cooperative_revokes_partitions_first_and_assigns_them_in_the_next_round() -> None:
    held = tuple(TopicPartition("t", n) for n in range(4))
    members = {"a": Subscription(("t",), b"", held, 1), "b": Subscription(("t",))}
    first = numbers(CooperativeStickyAssignor().assign(members, {"t": 4}))
    assert len(first["a"]) == 2
    assert first["b"] == []
    kept = tuple(TopicPartition("t", n) for n in first["a"])
    second = numbers(
        CooperativeStickyAssignor().assign({"a": Subscription(("t",), b"", kept, 2), "b": members["b"]}, {"t": 4})
    )
    assert second["a"] == first["a"]
    assert sorted(second["a"] + second["b"]) == [0, 1, 2, 3]


def test_static_members_come_first_in_the_order_of_their_instance_ids() -> None:
    members = {"z": Subscription(("t",), instance_id="i1"), "a": Subscription(("t",)),
               "y": Subscription(("t",), instance_id="i2")}  # fmt: skip
    assert numbers(RangeAssignor().assign(members, {"t": 3})) == {"z": [0], "y": [1], "a": [2]}


TOPICS = ("t", "u", "v")


@pytest.mark.claim(59)
@given(
    st.dictionaries(st.text("abc", min_size=1, max_size=2), st.sets(st.sampled_from(TOPICS), min_size=1), max_size=6),
    st.fixed_dictionaries({topic: st.integers(0, 7) for topic in TOPICS}),
    st.data(),
)
def test_assignments_are_complete_and_disjoint_and_respect_subscriptions(
    groups: dict[str, set[str]], counts: dict[str, int], data: st.DataObject
) -> None:
    def owned(topics: set[str]) -> tuple[TopicPartition, ...]:
        pool = [TopicPartition(topic, n) for topic in sorted(topics) for n in range(counts[topic] + 1)]
        return tuple(data.draw(st.sets(st.sampled_from(pool)))) if pool else ()

    members = {
        m: Subscription(tuple(sorted(t)), b"", owned(t), data.draw(st.integers(1, 2))) for m, t in groups.items()
    }
    readable = {TopicPartition(t, n) for t, count in counts.items() for n in range(count)
                if any(t in topics for topics in groups.values())}  # fmt: skip
    for assignor in (RangeAssignor(), RoundRobinAssignor(), StickyAssignor()):
        assignment = assignor.assign(members, counts)
        assigned = [tp for rows in assignment.values() for tp in rows]
        assert len(assigned) == len(set(assigned))
        assert set(assigned) == readable
        assert all(tp.topic in groups[m] for m, rows in assignment.items() for tp in rows)
    assignment = StickyAssignor().assign(members, counts)
    for tp in readable:
        owner = next(m for m, rows in assignment.items() if tp in rows)
        loads = [len(assignment[m]) for m, topics in groups.items() if tp.topic in topics]
        assert len(assignment[owner]) <= min(loads) + 1
    first = CooperativeStickyAssignor().assign(members, counts)
    for m, rows in first.items():
        held_elsewhere = {tp for other, one in members.items() if other != m for tp in one.owned}
        contested = {tp for tp in rows if tp in held_elsewhere}
        assert contested <= set(members[m].owned)


def test_subscriptions_are_decoded_as_they_were_encoded() -> None:
    sent = Subscription(("t", "u"), b"xy", (TopicPartition("t", 1), TopicPartition("u", 0)), 7, "r1")
    assert decode_subscription(encode_subscription(sent)) == sent
    assert decode_sticky_memory(encode_sticky_memory(sent.owned, 7)) == (sent.owned, 7)
    v0 = b"\x00\x00\x00\x00\x00\x01\x00\x01t\xff\xff\xff\xff"
    assert decode_subscription(v0, "i") == Subscription(("t",), instance_id="i")


@given(st.binary(max_size=60))
def test_malformed_subscriptions_raise_only_value_error(data: bytes) -> None:
    for read in (decode_subscription, decode_sticky_memory):
        try:
            read(data)
        except ValueError:
            continue


def test_assignors_are_given_by_name_class_or_instance() -> None:
    class Mine(Assignor):
        name = "mine"

        def assign(self, members: object, partition_counts: object) -> Assignments:
            return {}

    assert [one.name for one in make_assignors(["range", Mine, StickyAssignor()])] == ["range", "mine", "sticky"]
    for wrong in ("rnge", [], [Assignor], [3], ["range", "range"]):
        with pytest.raises(ConfigError):
            make_assignors(wrong)
