"""``odradek groups``: groups that are missing, of another kind, or unreadable, and the lag in its other forms."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.brokers import Wire, unique
from support.publish import commit_raw

from odradek import Producer
from odradek.cli.main import run
from odradek.client import Admin, NewTopic, TopicPartition
from odradek.core.errors import ErrorCode, KafkaError
from odradek.text.similar_names import nearest

Capture = pytest.CaptureFixture[str]
EMPTY_ASSIGNMENT = b"\0\1\0\0\0\0\0\0\0\0"


def join(wire: Wire, group: str, protocol_type: str, assignment: bytes) -> None:
    """Joins a group as its only member, which then has this assignment."""
    message: dict[str, Any] = {
        "group_id": group, "session_timeout": 300_000, "rebalance_timeout": 300_000, "member_id": "",
        "group_instance_id": None, "protocol_type": protocol_type,
        "protocols": [{"name": "default", "metadata": b""}],
    }  # fmt: skip
    member = wire.call(11, 5, message).member_id
    joined = wire.call(11, 5, message | {"member_id": member})
    wire.call(14, 3, {
        "group_id": group, "generation_id": joined.generation_id, "member_id": member, "group_instance_id": None,
        "assignments": [{"member_id": member, "assignment": assignment}],
    })  # fmt: skip


@pytest.fixture(scope="module")
def groups(broker: Any) -> Iterator[dict[str, str]]:
    """A healthy group, one of Connect's workers, one with an unreadable assignment, and their topic."""
    names = {name: unique(name) for name in ("healthy", "connect", "odd", "without", "topic")}
    with Admin(broker.bootstrap) as admin, Producer(broker.bootstrap) as producer, Wire(broker.bootstrap) as wire:
        admin.create_topics([NewTopic(names["topic"], 3, 1)])
        for partition, count in ((0, 2), (1, 5)):
            for number in range(count):
                producer.send(names["topic"], b"v", partition=partition, timestamp=1_700_000_000_000 + 60_000 * number)
        producer.flush()
        offsets = {TopicPartition(names["topic"], number): 0 for number in (0, 1)}
        admin.alter_group_offsets(names["healthy"], offsets)
        join(wire, names["connect"], "connect", b"\0\1")
        join(wire, names["odd"], "consumer", b"\0\0\0\0\0\1\0\xff")
        join(wire, names["without"], "consumer", EMPTY_ASSIGNMENT)
        yield names | {"bootstrap": broker.bootstrap}


def call(groups: dict[str, str], capsys: Capture, *line: str) -> tuple[int, str, str]:
    code = run([*line, "-b", groups["bootstrap"]])
    out, error = capsys.readouterr()
    return code, out, error


def test_a_group_of_connect_workers_is_not_a_group_without_offsets(groups: dict[str, str], capsys: Capture) -> None:
    """Once, describe printed an empty line with exit code 0; Kafka's tool says what we say."""
    wanted = f"odradek: group {groups['connect']} is not a consumer group (connect): it has no offsets of topics\n"
    for line in (("describe",), ("members",), ("reset", "--all-topics", "--to-latest", "--execute")):
        assert call(groups, capsys, "groups", line[0], groups["connect"], *line[1:]) == (2, "", wanted)
    code, out, _ = call(groups, capsys, "groups", "state", groups["connect"])
    assert (code, "Stable" in out) == (0, True)


def test_a_group_of_connect_workers_hides_no_other_group(groups: dict[str, str], capsys: Capture) -> None:
    """Once, the command ended at the first group of another kind, and showed none."""
    connect, healthy = groups["connect"], groups["healthy"]
    wanted = f"group {connect} is not a consumer group (connect): it has no offsets of topics\n"
    reset = ("reset", "--all-topics", "--to-earliest", "--dry-run")
    for command, *more in (("describe",), ("members",), reset):
        shown = groups["without"] if command == "members" else healthy
        code, out, error = call(groups, capsys, "groups", command, connect, shown, *more)
        assert (code, shown in out, wanted in error) == (1, True, True), command
    code, out, error = call(groups, capsys, "groups", "describe", connect, "no-such", "--json")
    assert (code, json.loads(out), wanted in error, "no-such not found" in error) == (1, [], True, True)


def test_each_group_fails_alone(groups: dict[str, str], capsys: Capture) -> None:
    for line in (("--all-groups",), ("--group", groups["odd"], "--group", groups["healthy"], "--group", "no-such")):
        code, out, error = call(groups, capsys, "groups", "describe", *line)
        assert code == 1
        assert groups["healthy"] in out
        assert f"group {groups['odd']}: the assignment of member" in error
        assert ("no-such not found" in error) == ("no-such" in line)
    code, out, _ = call(groups, capsys, "groups", "describe", "--all-groups", "--json")
    assert code == 1
    assert groups["healthy"] in [one["group"] for one in json.loads(out)]
    code, out, error = call(groups, capsys, "groups", "state", "--all-groups")
    assert (code, groups["healthy"] in out, groups["odd"] in error) == (1, True, True)
    code, out, error = call(groups, capsys, "groups", "describe", "--all-groups")
    assert f"{groups['connect']} (connect)" in error.splitlines()[0]


def test_a_group_with_an_empty_name_hides_no_other_group(groups: dict[str, str], capsys: Capture) -> None:
    """Old clients commit without a name. Brokers refuse to describe this group, but its offsets can be read."""
    topic = unique("topic")
    with Admin(groups["bootstrap"]) as admin:
        admin.create_topics([NewTopic(topic, 1, 1)])
        admin.alter_group_offsets("", {TopicPartition(topic, 0): 0})
        try:
            _, out, _ = call(groups, capsys, "groups", "describe", "--all-groups", "--json")
            found = {one["group"]: one["total_lag"] for one in json.loads(out)}
            assert (found[""], found[groups["healthy"]]) == (0, 7)
            _, out, error = call(groups, capsys, "groups", "state", "--all-groups")
            assert "INVALID_GROUP_ID: the group with an empty name" in error
            assert groups["healthy"] in out
            reset = ("groups", "reset", "--all-groups", "--to-latest", "--dry-run", "--json")
            for which in (("--all-topics",), ("--topic", topic)):
                _, out, error = call(groups, capsys, *reset, *which)
                plans = {one["group"]: one for one in json.loads(out)}
                assert [row["after"] for row in plans[""]["partitions"]] == [0]
                assert groups["healthy"] in plans
                assert "INVALID_GROUP_ID" not in error
            _, out, _ = call(groups, capsys, "groups", "describe", "--all-groups", "--totals")
            assert "Total lag of '': 0 in 1 partition." in out
        finally:
            admin.delete_groups([""])
            admin.delete_topics([topic])


def test_what_does_not_exist_has_an_exit_code_and_a_similar_name(groups: dict[str, str], capsys: Capture) -> None:
    group, topic, typo = groups["healthy"], groups["topic"], groups["healthy"][:-1]
    meant, target = f"(did you mean {group}?)", ("--to-earliest", "--execute")
    for line, wanted in (
        (("groups", "describe", typo), f"group {typo} not found {meant}"),
        (("groups", "members", typo), f"group {typo} not found {meant}"),
        (("groups", "reset", typo, "--all-topics", *target), f"group {typo} does not exist {meant}: it has no offsets"),
        (
            ("groups", "reset", group, "--topic", topic[:-1], *target),
            f"unknown topic {topic[:-1]} (did you mean {topic}?)",
        ),
        (("groups", "delete-offsets", "--group", typo, "--topic", topic, "--yes"), f"group {typo} not found {meant}"),
        (("offsets", "dump", "--group", typo), f"__consumer_offsets has no record of group '{typo}' {meant}"),
        (("topics", "describe", topic[:-1]), f"unknown topic {topic[:-1]} (did you mean {topic}?)"),
        (("topics", "alter", topic[:-1], "--partitions", "9"), f"unknown topic {topic[:-1]} (did you mean {topic}?)"),
        (
            ("topics", "alter", topic[:-1], "--config", "retention.ms=1"),
            f"unknown topic {topic[:-1]} (did you mean {topic}?)",
        ),
        (("topics", "describe", f"{topic} "), f"topic '{topic} ': the name has spaces at its ends: correct it"),
    ):
        code, out, error = call(groups, capsys, *line)
        assert (code, out, error.count("\n")) == (2, "", 1), line
        assert wanted in error
    code, out, error = call(groups, capsys, "groups", "reset", typo, "--topic", topic, "--to-earliest", "--dry-run")
    assert (code, out.count("first offset") >= 1) == (0, True)
    assert error == f"Warning: group {typo} does not exist {meant}: a reset needs --create to create it.\n"
    code, _, error = call(
        groups, capsys, "groups", "delete-offsets", "--group", group, "--topic", f"{topic}:2", "--yes"
    )
    assert (code, "has no offsets in" in error) == (1, True)
    code, _, error = call(groups, capsys, "offsets", "dump", "--group", group, "--type", "groups")
    assert (code, error) == (
        0,
        f"odradek: __consumer_offsets has no record of group {group} of another kind than commits\n",
    )


def test_the_lag_has_times_totals_and_an_order(groups: dict[str, str], capsys: Capture) -> None:
    group = groups["healthy"]
    _, out, _ = call(groups, capsys, "groups", "describe", group, "--json", "--time", "--sort", "lag")
    (found,) = json.loads(out)
    rows = [(row["partition"], row["lag"], row["time_lag_ms"]) for row in found["partitions"]]
    assert (rows, found["total_lag"]) == ([(1, 5, 240_000), (0, 2, 60_000)], 7)
    with Admin(groups["bootstrap"]) as admin:
        admin.alter_group_offsets(group, {TopicPartition(groups["topic"], 1): 5})
        _, out, _ = call(groups, capsys, "groups", "describe", group, "--time", "--sort", "time", "--totals")
        admin.alter_group_offsets(group, {TopicPartition(groups["topic"], 1): 0})
    lines = [line.split() for line in out.splitlines()]
    assert lines[1][5:7] == ["LAG", "TIME-LAG"]
    assert [line[2:7] for line in lines[2:4]] == [["0", "0", "2", "2", "1m"], ["1", "5", "5", "0", "0s"]]
    assert out.splitlines()[-1] == f"Total lag of {group}: 2 in 2 partitions."
    plain = call(groups, capsys, "groups", "describe", "--group", group)[1]
    assert plain.splitlines()[1].split()[-4:] == ["LAG", "CONSUMER-ID", "HOST", "CLIENT-ID"], "Kafka's layout"
    assert call(groups, capsys, "groups", "describe", group, "--sort", "age")[2].startswith(
        "odradek: --sort 'age': one of"
    )


def test_watch_repeats_until_it_is_interrupted(
    groups: dict[str, str], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("odradek.cli.groups.describe._wait", wait)
    code, out, _ = call(groups, capsys, "groups", "describe", groups["healthy"], "--watch", "--interval", "5")
    assert (code, waits) == (0, [5.0, 5.0, 5.0])
    assert out.count(", every 5 s\n") == out.count("CURRENT-OFFSET") == 3
    waits.clear()
    _, out, _ = call(groups, capsys, "groups", "describe", groups["healthy"], "--watch", "--json")
    assert [json.loads(line)[0]["total_lag"] for line in out.splitlines()] == [7, 7, 7]


def test_names_are_given_once(groups: dict[str, str], capsys: Capture) -> None:
    code, _, error = call(groups, capsys, "groups", "describe", "a", "--all-groups")
    assert (code, error) == (2, "odradek: give --group or --all-groups, not both (group 'a')\n")
    code, out, _ = call(groups, capsys, "groups", "describe", groups["healthy"], "--group", groups["healthy"])
    assert (code, out.count("CURRENT-OFFSET")) == (0, 1)
    _, _, error = call(groups, capsys, "produce", "orders", "--topic", "orders ")
    assert error == "odradek: topic orders and --topic 'orders ': give one topic, as an argument or with --topic\n"


def test_each_group_is_reset_alone(
    groups: dict[str, str], capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Once, the first group that a broker refused ended the command, and the later groups were not reset."""
    names = [unique(f"{number}-alone") for number in range(3)]
    real = Admin.alter_group_offsets

    def alter(admin: Admin, group: str, offsets: Any) -> None:
        if group == names[1]:
            raise KafkaError(ErrorCode.group_authorization_failed, f"group {group}")
        real(admin, group, offsets)

    with Admin(groups["bootstrap"]) as admin:
        for name in names:
            admin.alter_group_offsets(name, {TopicPartition(groups["topic"], 1): 0})
        monkeypatch.setattr(Admin, "alter_group_offsets", alter)
        target = ("--topic", f"{groups['topic']}:1", "--to-latest", "--execute", "--undo-file", str(tmp_path / "u"))
        code, out, error = call(groups, capsys, "groups", "reset", *names, *target)
        assert (code, error) == (
            1, f"odradek: group {names[1]} is not reset: GROUP_AUTHORIZATION_FAILED: group {names[1]}\n"
        )  # fmt: skip
        assert f"Reset {names[0]}, {names[2]}." in out
        assert [[one.offset for one in admin.list_group_offsets(name).values()] for name in names] == [[5], [0], [5]]


def slips(group: str) -> list[str]:
    """Names that nearly are the group's, and one that is like no other."""
    return [group.upper(), group[:-1], group[:3] + group[4:], f"{group}s", group[::-1], unique("another")]


def test_a_reset_creates_a_group_only_on_request(groups: dict[str, str], capsys: Capture, tmp_path: Path) -> None:
    """Kafka's tool creates each group, so a slip in its name ends with exit code 0."""
    topic, plan = groups["topic"], tmp_path / "plan.csv"
    plan.write_text(f"{topic},0,1\n")
    undo = ("--undo-file", str(tmp_path / "undo.csv"))
    with Admin(groups["bootstrap"]) as admin:
        for slip in slips(groups["healthy"]):
            meant = "" if (near := nearest(slip, [row.group_id for row in admin.list_groups()])) == "" else near
            wanted = f"odradek: group {slip} does not exist{meant}: add --create to create it\n"
            line = ("groups", "reset", slip, "--topic", topic, "--to-earliest")
            for asked in (
                line, (*line, "--execute", *undo), (*line, "--execute", "--export", *undo),
                (*line, "--execute", "--json"),
                ("groups", "reset", slip, "--from-file", str(plan), "--execute", *undo),
            ):  # fmt: skip
                code, out, error = call(groups, capsys, *asked)
                assert (code, error) == (2, wanted), asked
                assert "Reset" not in out
            for shown in ("--dry-run", "--export"):
                code, out, error = call(groups, capsys, *line, shown)
                assert (code, topic in out) == (0, True)
                assert error == f"Warning: group {slip} does not exist{meant}: a reset needs --create to create it.\n"
            assert slip not in {row.group_id for row in admin.list_groups()}
            assert not (tmp_path / "undo.csv").exists()
            code, out, error = call(groups, capsys, *line, "--execute", "--undo-file", "/dev/null", "--create")
            assert (code, f"Reset {slip}." in out, error) == (0, True, "")
            assert "Undo:" not in out, "the undo file keeps nothing"
            assert admin.list_group_offsets(slip)[TopicPartition(topic, 0)].offset == 0
            admin.delete_groups([slip])
        code, out, error = call(groups, capsys, *line, "--execute", *undo, "--group", groups["healthy"])
        assert (code, f"group {slip} does not exist" in error) == (2, True), "the other group is reset"
        code, _, error = call(groups, capsys, "groups", "delete", groups["healthy"].title(), "--yes")
        assert (code, "(did you mean " in error) == (2, True)


@pytest.mark.slow
def test_kafkas_tool_creates_the_group_of_a_reset(
    bootstrap: str, filled: str, group: str, kafkas_tool: Callable[..., Any], capsys: Capture
) -> None:
    """--create does what Kafka's tool always does."""
    scope = ["--topic", filled, "--to-earliest", "--execute"]
    theirs = kafkas_tool("--reset-offsets", "--group", f"{group}-java", *scope).stdout
    line = ["groups", "reset", group, *scope, "--create", "--undo-file", "/dev/null", "-b", bootstrap]
    assert run(line) == 0
    with Admin(bootstrap) as admin:
        ours = {tp: one.offset for tp, one in admin.list_group_offsets(group).items()}
        assert ours == {tp: one.offset for tp, one in admin.list_group_offsets(f"{group}-java").items()}
    assert filled in theirs


def test_the_place_of_a_group_that_does_not_exist(groups: dict[str, str], capsys: Capture) -> None:
    group, typo = groups["healthy"], groups["healthy"][:-1]
    code, out, error = call(groups, capsys, "groups", "locate", typo)
    assert (code, f"Group        {typo}" in out) == (0, True)
    assert error == f"Warning: group {typo} does not exist (did you mean {group}?): this would be its place.\n"
    assert call(groups, capsys, "groups", "locate", group)[2] == ""


@pytest.mark.parametrize(
    ("given", "known", "meant"),
    [("e2", ["e1", "f2"], "e1"), ("e0", ["e17", "x"], "e17"), ("reader-1", ["reader-2"], "reader-2"),
     ("e2", ["f2"], ""), ("ab", ["ac"], "")],
)  # fmt: skip
def test_a_name_that_differs_in_digits_is_suggested_however_short(given: str, known: list[str], meant: str) -> None:
    assert nearest(given, known) == (f" (did you mean {meant}?)" if meant else "")


def test_a_topic_that_exists_is_named_once(groups: dict[str, str], capsys: Capture) -> None:
    _, _, error = call(groups, capsys, "topics", "create", groups["topic"])
    assert error == (
        f"odradek: TOPIC_ALREADY_EXISTS: topic {groups['topic']} already exists: give another name; odradek topics "
        "alter changes a topic\n"
    )


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            "t,0,5\n".encode("utf-16"),
            "plan.csv: it is UTF-16: save it as UTF-8, for example with `iconv -f UTF-16",
        ),
        ("t,0,\u0665\n".encode(), "line 1: expected [group,]topic,partition,offset, not"),
        ("t,\u0660,5\n".encode(), "line 1: expected [group,]topic,partition,offset, not"),
        (b"t,-1,5\n", "line 1: expected [group,]topic,partition,offset, not"),
    ],
)
def test_a_plan_has_plain_numbers(rows: bytes, message: str, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "plan.csv").write_bytes(rows)
    line = ["groups", "reset", "g", "--from-file", str(tmp_path / "plan.csv"), "--execute", "-b", "127.0.0.1:1"]
    assert run(line) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_group_with_an_empty_name_is_described_reset_and_deleted(
    groups: dict[str, str], capsys: Capture, tmp_path: Path
) -> None:
    """Once, the commands said that a name cannot be empty. Brokers accept its commits and its deletion."""
    topic, none = groups["topic"], "no group has an empty name"
    reset = ("groups", "reset", "", "--topic", f"{topic}:1", "--to-latest", "--execute", "--undo-file")
    undo = str(tmp_path / "undo.csv")
    for line in (("groups", "describe", ""), ("groups", "delete", "", "--yes"), (*reset, undo, "--create")):
        code, out, error = call(groups, capsys, *line)
        assert (code, "Reset" in out or "Deleted" in out, none in error, error.count("\n")) == (2, False, True, 1), line
    with Admin(groups["bootstrap"]) as admin:
        assert "" not in {row.group_id for row in admin.list_groups()}, "a reset creates none"
        admin.alter_group_offsets("", {TopicPartition(topic, 1): 2})
        _, out, _ = call(groups, capsys, "groups", "describe", "", "--json")
        assert [(one["group"], one["total_lag"]) for one in json.loads(out)] == [("", 3)]
        code, out, _ = call(groups, capsys, *reset, undo)
        assert (code, "Group ''" in out, "Reset ''." in out) == (0, True, True)
        assert admin.list_group_offsets("")[TopicPartition(topic, 1)].offset == 5
        assert call(groups, capsys, "groups", "reset", "--group", "", "--from-file", undo, "--execute")[0] == 0
        assert admin.list_group_offsets("")[TopicPartition(topic, 1)].offset == 2
        assert call(groups, capsys, "groups", "delete", "", "--yes")[:2] == (0, "Deleted ''.\n")
        assert "" not in {row.group_id for row in admin.list_groups()}


def test_a_total_counts_no_partition_without_a_commit(groups: dict[str, str], capsys: Capture) -> None:
    """Once, a group whose only commit is below 0 had a total of 0, and a commit beyond the log's end was not named."""
    topic, mixed, below, beyond = groups["topic"], unique("mixed"), unique("below"), unique("beyond")
    commit_raw(groups["bootstrap"], below, topic, {0: (-2, -1, "")})
    commit_raw(groups["bootstrap"], mixed, topic, {0: (-2, -1, ""), 1: (2, -1, "")})
    commit_raw(groups["bootstrap"], beyond, topic, {0: (0, -1, ""), 1: (500, -1, "")})

    def described(*names: str) -> tuple[list[Any], list[str], str]:
        _, out, _ = call(groups, capsys, "groups", "describe", *names, "--json")
        _, text, error = call(groups, capsys, "groups", "describe", *names, "--totals", "--sort", "lag")
        totals = [line.partition(": ")[2] for line in text.splitlines() if line.startswith("Total lag of ")]
        return [one["total_lag"] for one in json.loads(out)], totals, error

    assert described(below)[:2] == ([None], ["-; 1 partition without a commit."])
    assert described(mixed)[:2] == ([3], ["3 in 1 partition; 1 partition without a commit."])
    assert described(below, mixed)[1][-1] == "3.", "of both groups"
    totals, texts, error = described(beyond)
    assert (totals, texts) == ([2], ["2 in 2 partitions; 1 commit beyond the log's end counts as 0."])
    warning = f"{topic}-1: group '{beyond}' committed 500, beyond the end of the log at 5: LAG is below 0."
    assert warning in error
    assert described(groups["without"])[0] == [None], "a group without any commit"
    with Admin(groups["bootstrap"]) as admin:
        admin.delete_groups([below, mixed, beyond])
