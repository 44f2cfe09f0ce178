"""The coordinator's assignors, compared with the rules for any assignment and, for small groups, with all possible
assignments. Also Kafka's hashes, and patterns for topics."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.whole_steps import group_hash

from odradek.core.ids import hash_order, java_string_hash
from odradek.groups.kip848.assignors import RANGE, UNIFORM, MemberSpec, Partitions, assign, uuid_hash
from odradek.groups.kip848.metadata_hash import TopicFacts, topic_hash, xxh3
from odradek.groups.kip848.regex import resolve

TOPICS = [number.to_bytes(16, "big") for number in (0x1F, 0x2E00000001, 0x3D << 70)]
NOTHING: Partitions = {}


def assignment_of(
    members: dict[str, MemberSpec],
    counts: dict[bytes, int],
    assignor: str = UNIFORM,
    *,
    homogeneous: bool | None = None,
) -> dict[str, Partitions]:
    same = len({member.topics for member in members.values()}) <= 1 if homogeneous is None else homogeneous
    return assign(assignor, members, counts, homogeneous=same)


def flat(assignment: dict[str, Partitions]) -> dict[tuple[bytes, int], list[str]]:
    """Partition -> its owners."""
    owners: dict[tuple[bytes, int], list[str]] = {}
    for member_id, topics in assignment.items():
        for topic_id, partitions in topics.items():
            for partition in partitions:
                owners.setdefault((topic_id, partition), []).append(member_id)
    return owners


def loads(assignment: dict[str, Partitions], members: dict[str, MemberSpec]) -> list[int]:
    return sorted(sum(map(len, assignment.get(member_id, {}).values())) for member_id in members)


@st.composite
def groups(draw: st.DrawFn, *, same: bool) -> tuple[dict[str, MemberSpec], dict[bytes, int]]:
    counts = {topic_id: draw(st.integers(1, 7)) for topic_id in TOPICS[: draw(st.integers(1, 3))]}
    subsets = st.frozensets(st.sampled_from(sorted(counts)), min_size=0 if not same else 1)
    shared = draw(subsets)
    members = {}
    free = [(topic_id, partition) for topic_id, count in counts.items() for partition in range(count)]
    for number in range(draw(st.integers(1, 5))):
        had = [row for row in free if draw(st.integers(0, 3)) == 0]
        free = [row for row in free if row not in had]
        assigned = {topic_id: frozenset(p for t, p in had if t == topic_id) for topic_id in {t for t, _ in had}}
        members[f"member-{number}"] = MemberSpec(shared if same else draw(subsets), assigned)
    return members, counts


def check(members: dict[str, MemberSpec], counts: dict[bytes, int], assignment: dict[str, Partitions]) -> None:
    """Every partition with a subscriber has exactly one owner, and the owner subscribes to its topic."""
    read = {(t, p) for member in members.values() for t in member.topics for p in range(counts[t])}
    owners = flat(assignment)
    assert owners.keys() == read
    assert all(len(who) == 1 for who in owners.values())
    assert all(topic_id in members[who[0]].topics for (topic_id, _), who in owners.items())


@settings(max_examples=examples(50), deadline=None)
@given(groups(same=True))
def test_members_with_equal_subscriptions_share_evenly_and_move_few_partitions(
    group: tuple[dict[str, MemberSpec], dict[bytes, int]],
) -> None:
    members, counts = group
    assignment = assignment_of(members, counts)
    check(members, counts, assignment)
    sizes = loads(assignment, members)
    assert sizes[-1] - sizes[0] <= 1
    again = assignment_of({name: spec._replace(assigned=assignment[name]) for name, spec in members.items()}, counts)
    assert again == assignment  # a balanced assignment does not change
    # A member loses partitions only if it keeps at least an equal share.
    share = sum(counts[topic_id] for topic_id in next(iter(members.values())).topics) // len(members)
    for name, spec in members.items():
        had = {(t, p) for t, partitions in spec.assigned.items() if t in spec.topics for p in partitions}
        kept = {(t, p) for t, partitions in assignment[name].items() for p in partitions} & had
        assert len(kept) >= min(len(had), share)


@settings(max_examples=examples(50), deadline=None)
@given(groups(same=False))
def test_members_with_different_subscriptions_are_balanced(
    group: tuple[dict[str, MemberSpec], dict[bytes, int]],
) -> None:
    members, counts = group
    assignment = assignment_of(members, counts, homogeneous=False)
    check(members, counts, assignment)
    size = {name: sum(map(len, assignment.get(name, NOTHING).values())) for name in members}
    for (topic_id, _), (owner,) in flat(assignment).items():  # moving one partition cannot improve the balance
        readers = [name for name, spec in members.items() if topic_id in spec.topics]
        assert size[owner] - min(size[name] for name in readers) <= 1
    again = {name: spec._replace(assigned=assignment.get(name, NOTHING)) for name, spec in members.items()}
    assert flat(assignment_of(again, counts, homogeneous=False)) == flat(assignment)


@settings(max_examples=examples(25), deadline=None)
@given(groups(same=False))
def test_the_largest_share_of_few_partitions_is_at_most_one_above_the_smallest_possible(
    group: tuple[dict[str, MemberSpec], dict[bytes, int]],
) -> None:
    """As in Kafka, partitions move one at a time: for topics a and b of two partitions each and members that read a,
    ab, ab and b, one member may have both partitions of a, and the member that reads b none."""
    members, counts = group
    counts = {topic_id: min(count, 2) for topic_id, count in counts.items()}
    members = {name: spec._replace(assigned={}) for name, spec in members.items()}
    assignment = assignment_of(members, counts, homogeneous=False)
    rows = list(flat(assignment))
    readers = [[name for name, spec in members.items() if topic_id in spec.topics] for topic_id, _ in rows]
    spread = [sorted(map(choice.count, members)) for choice in itertools.product(*readers)]
    smallest = min(sizes[-1] for sizes in spread)
    assert smallest <= max(loads(assignment, members)) <= smallest + 1


@settings(max_examples=examples(35), deadline=None)
@given(groups(same=False))
def test_ranges_are_consecutive_and_in_order(group: tuple[dict[str, MemberSpec], dict[bytes, int]]) -> None:
    members, counts = group
    assignment = assignment_of(members, counts, RANGE)
    check(members, counts, assignment)
    for topic_id in counts:
        readers = sorted(name for name, spec in members.items() if topic_id in spec.topics)
        shares = [sorted(assignment[name].get(topic_id, ())) for name in readers]
        assert [partition for share in shares for partition in share] == list(range(counts[topic_id] if readers else 0))
        sizes = [len(share) for share in shares]
        assert sizes == sorted(sizes, reverse=True)  # the first members get the remainder
        assert not sizes or sizes[0] - sizes[-1] <= 1


def test_static_members_come_first_in_ranges() -> None:
    topics = frozenset(TOPICS[:1])
    members = {"a": MemberSpec(topics, {}), "z": MemberSpec(topics, {}, "2"), "y": MemberSpec(topics, {}, "3")}
    assignment = assignment_of(members, {TOPICS[0]: 3}, RANGE)
    assert {name: sorted(shares[TOPICS[0]]) for name, shares in assignment.items()} == {"z": [0], "y": [1], "a": [2]}


def test_an_assignment_without_members_or_topics_is_empty() -> None:
    assert assignment_of({}, {}) == {}
    assert flat(assignment_of({"a": MemberSpec(frozenset(), {TOPICS[0]: frozenset({1})})}, {})) == {}
    assert flat(assignment_of({"a": MemberSpec(frozenset(), {})}, {}, homogeneous=False)) == {}


# --- compatibility with Java ----------------------------------------------------------------------------------------


def test_the_hash_order_is_the_iteration_order_of_javas_hash_maps() -> None:
    """``order`` is the iteration order of a ``HashMap`` with these 14 strings on a JVM."""
    names = [f"member-{i}-x" for i in range(14)]
    assert hash_order(["range", "uniform"], java_string_hash) == ["uniform", "range"]
    assert hash_order([17, 1, 16, 0], lambda number: number) == [16, 0, 17, 1]  # 17 and 1, and 16 and 0, share a bucket
    order = [names.index(name) for name in hash_order(names, java_string_hash)]
    assert order == [12, 11, 10, 8, 9, 4, 5, 6, 7, 0, 1, 2, 3, 13]
    assert uuid_hash(bytes(15) + b"\1") == 1
    assert uuid_hash(b"\0\0\0\1" + bytes(12)) == 1


@pytest.mark.parametrize(
    ("size", "hash_"),
    [
        (0, 3244421341483603138), (1, 1433843135270481901), (3, -6266602912829716452), (4, 7895465118229274323),
        (8, 6941064856527638883), (9, -72226354546400344), (16, -5131753158909839995), (17, 8163341949877205007),
        (32, 1873302701886544469), (33, 4486878507168070088), (64, 2917965298538373825), (65, -9038134159117547962),
        (128, 7440608504995537343), (129, -4150982730466284604), (200, 8389308914288017243),
        (240, 7229805477010515663), (241, -8364630114420064745), (256, 4339360625268998362),
        (257, 3039943168460295846), (1024, -7241394453710343503), (1025, -9192937061388044938),
        (2049, 6174105427284153526), (5000, 8762507191635236893),
    ],
)  # fmt: skip
def test_xxh3_gives_what_hash4j_gives(size: int, hash_: int) -> None:
    assert xxh3(bytes((at * 7 + 3) & 255 for at in range(size))) == hash_ & (1 << 64) - 1


def test_a_topic_hash_depends_on_name_id_partitions_and_racks() -> None:
    topic = TopicFacts("flights", TOPICS[0], 4)
    others = [
        topic._replace(name="flight"), topic._replace(topic_id=TOPICS[1]), topic._replace(partition_count=5),
        topic._replace(racks=(("r1",), ("r1",), ("r2",), ("r2",))),
    ]  # fmt: skip
    assert len({topic_hash(each) for each in [topic, *others]}) == 5
    assert group_hash([]) == 0
    assert group_hash([topic, others[0]]) == group_hash([others[0], topic]) != group_hash([topic])


# --- patterns -------------------------------------------------------------------------------------------------------


def test_no_pattern_keeps_the_broker_busy() -> None:
    """With Python's ``re`` the first three patterns would practically never end."""
    longest = "a" * 249
    assert resolve(["(a|aa)+b", "(a*)*b", "(a?){100}a{100}"], [longest]) == {
        "(a|aa)+b": frozenset(),
        "(a*)*b": frozenset(),
        "(a?){100}a{100}": frozenset(),
    }
    assert resolve(["(a|aa)+", "[", "b|a+"], [longest, "b", "bb"]) == {
        "(a|aa)+": {longest},
        "[": frozenset(),  # an invalid pattern, which an older broker accepted, matches nothing
        "b|a+": {longest, "b"},
    }
