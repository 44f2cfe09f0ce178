"""``odradek zookeeper`` beside a broker: its output, its writes, its refusals, and its exit codes."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_acl, make_digest_acl
from zookeeper.conftest import Tool

from odradek import Consumer
from odradek.cli.main import run
from odradek.client import Admin
from odradek.core.ids import TopicPartition as Tp
from odradek.zookeeper.store import OffsetStore

SUBSCRIPTION = '{"version":1,"subscription":{"%s":1},"pattern":"static","timestamp":"1700000000000"}'


def put(kazoo: KazooClient, group: str, topic: str, offsets: dict[object, str]) -> None:
    for partition, data in offsets.items():
        path = f"/consumers/{group}/offsets/{topic}/{partition}"
        kazoo.ensure_path(path)
        kazoo.set(path, data.encode())


def stored(kazoo: KazooClient, group: str, topic: str) -> dict[str, str]:
    path = f"/consumers/{group}/offsets/{topic}"
    return {name: kazoo.get(f"{path}/{name}")[0].decode() for name in sorted(kazoo.get_children(path))}


@contextmanager
def consumer(kazoo: KazooClient, group: str, topic: str, owned: tuple[int, ...] = ()) -> Iterator[str]:
    """A registered high-level consumer of Kafka; its znodes are deleted at the end of the ``with`` block."""
    name = f"{group}_host-1700000000000-0a1b2c3d"
    made = [
        kazoo.create(f"/consumers/{group}/ids/{name}", (SUBSCRIPTION % topic).encode(), ephemeral=True, makepath=True)
    ]
    for partition in owned:
        path = f"/consumers/{group}/owners/{topic}/{partition}"
        made.append(kazoo.create(path, f"{name}-0".encode(), ephemeral=True, makepath=True))
    yield name
    for path in made:
        kazoo.delete(path)


def undo_file(folder: Path) -> Path:
    (found,) = folder.glob("odradek/undo/odradek-undo-*")
    return found


def test_the_commands_groups_and_describe_show_offsets_and_members(
    tool: Tool, kazoo: KazooClient, filled: str, group: str
) -> None:
    assert (tool("groups", kafka=False), tool.out) == (0, "No groups.\n")
    put(kazoo, group, filled, {0: "4", "1-0": "812"})
    with consumer(kazoo, group, filled, (1,)) as name:
        assert tool.json("groups", kafka=False) == [
            {"group": group, "topics": 1, "offsets": 1, "invalid": 1, "members": 1}
        ]
        (found,) = tool.json("describe", "--group", group)
        assert tool.code == 1
        for row in found["partitions"]:
            row.pop("modified_ms")
        assert found["partitions"] == [
            {"topic": filled, "partition": 0, "offset": 4, "log_end_offset": 10, "lag": 6, "owner": None},
            {"topic": filled, "partition": 1, "offset": None, "log_end_offset": 10, "lag": None, "owner": f"{name}-0"},
        ]
        path = f"/consumers/{group}/offsets/{filled}/1-0"
        reason = "1-0 is a broker and a partition of Kafka 0.7, whose values are byte positions, not offsets"
        assert found["invalid"] == [{"path": path, "reason": reason}]
        assert tool("describe", "--group", group) == 1
        assert tool.err == f"{path}: {reason}\n"
        assert re.search(rf"^{filled} +0 +4 +10 +6 +- +20\d\d-\S+Z$", tool.out, re.MULTILINE)
        assert tool("describe", "--all-groups", kafka=False) == 1
        assert re.search(rf"^{filled} +0 +4 +- +- +- ", tool.out, re.MULTILINE)


def test_offsets_outside_their_logs_are_listed(tool: Tool, kazoo: KazooClient, filled: str, group: str) -> None:
    put(kazoo, group, filled, {0: "11", 7: "1"})
    put(kazoo, group, "gone", {0: "1"})
    (found,) = tool.json("describe", "--group", group)
    assert tool.code == 1
    assert {one["path"].rpartition("offsets/")[2]: one["reason"] for one in found["invalid"]} == {
        f"{filled}/0": f"offset 11 is outside the log of {filled}-0, which has 0 to 10",
        f"{filled}/7": f"topic {filled} has no partition 7 (it has 2)",
        "gone/0": "Kafka has no topic gone",
    }


def test_owners_are_checked(tool: Tool, kazoo: KazooClient, filled: str, group: str) -> None:
    with consumer(kazoo, group, filled, (0, 1)) as name:
        assert tool("owners", "--group", group) == 0
        assert f"Group {group}: members: {name}\n" in tool.out
        assert re.search(rf"^{filled} +1 +{name}-0 +ok$", tool.out, re.MULTILINE)
    with consumer(kazoo, group, filled, (0,)):
        (found,) = tool.json("owners", "--group", group)
        assert (tool.code, found["partitions"][1]["problem"]) == (1, "no owner")
        kazoo.create(f"/brokers/topics/{filled}", b'{"version":1,"partitions":{"0":[1]}}', makepath=True)
        assert tool("owners", "--group", group, kafka=False) == 0


def test_owners_need_the_partitions_of_the_topics(tool: Tool, kazoo: KazooClient, filled: str, group: str) -> None:
    """Without -b and without topics in this ZooKeeper it is not known which partitions a topic has."""
    if kazoo.exists("/brokers/topics"):
        kazoo.delete("/brokers/topics", recursive=True)
    with consumer(kazoo, group, filled, (0,)):
        assert tool("owners", "--group", group, kafka=False) == 2
        assert tool.err.startswith("odradek: no broker has registered topics in this ZooKeeper (/brokers/topics)")
        assert tool.err.endswith("name Kafka's brokers with -b HOST:PORT\n")
    with consumer(kazoo, group, "no-such-topic", ()):
        assert tool("owners", "--group", group) == 1
        assert re.search("^no-such-topic +- +- +the subscribed topic does not exist$", tool.out, re.MULTILINE)
        (found,) = tool.json("owners", "--group", group)
        assert found["partitions"][0]["partition"] is None


def test_all_groups_come_in_the_order_of_their_names(tool: Tool, kazoo: KazooClient, filled: str, group: str) -> None:
    names = [f"{group}-{letter}" for letter in "badec"]
    for name in names:
        put(kazoo, name, filled, {0: "4"})
    listed = [row["group"] for row in tool.json("describe", "--all-groups")]
    assert [name for name in listed if name in names] == sorted(names)
    assert listed == sorted(listed)
    for line in (["compare", "--all-groups"], ["migrate", "--to", "kafka", "--all-groups"]):
        tool(*line)
        shown = [row.split()[0] for row in tool.out.splitlines() if row.startswith(f"{group}-")]
        assert shown == sorted(names), line
    assert (tool("delete", "--all-groups", kafka=False), tool.err) == (
        2, "odradek: no such option --all-groups: here, each group by its name: --group GROUP (repeatable)\n"
    )  # fmt: skip


TARGETS = [
    (["--to-earliest"], {"0": "0", "1": "0"}),
    (["--to-latest"], {"0": "10", "1": "10"}),
    (["--to-offset", "99"], {"0": "10", "1": "10"}),
    (["--shift-by", "-2"], {"0": "2", "1": "5"}),
    (["--to-datetime", "2023-11-14T22:13:20.003"], {"0": "3", "1": "3"}),
    (["--by-duration", "PT1S"], {"0": "10", "1": "10"}),
]


@pytest.mark.parametrize(("target", "expected"), TARGETS, ids=[" ".join(case[0]) for case in TARGETS])
def test_a_reset_is_shown_executed_and_undone(
    tool: Tool, kazoo: KazooClient, filled: str, group: str, tmp_path: Path, target: list[str], expected: dict[str, str]
) -> None:
    before = {"0": "4", "1": "7"}
    put(kazoo, group, filled, {0: "4", 1: "7"})
    assert tool("reset", "--group", group, "--topic", filled, *target) == 0
    assert tool.out.endswith("Nothing was written: add --execute.\n")
    assert (stored(kazoo, group, filled), list(tmp_path.iterdir())) == (before, [])
    assert tool("reset", "--group", group, "--all-topics", *target, "--execute") == 0
    assert re.search(rf"^{group} +{filled} +0 +4 +{expected['0']}$", tool.out, re.MULTILINE)
    assert stored(kazoo, group, filled) == expected
    undo = undo_file(tmp_path)
    assert f"Undo: odradek zookeeper import --file {undo} --execute -z" in tool.out
    assert tool("import", "--file", str(undo), "--execute", "--undo-file", "second.txt") == 0
    assert stored(kazoo, group, filled) == before


def test_a_reset_without_earlier_offsets_says_what_no_undo_restores(
    tool: Tool, kazoo: KazooClient, filled: str, group: str
) -> None:
    assert tool("reset", "--group", group, "--topic", f"{filled}:1", "--to-earliest", "--execute") == 0
    assert stored(kazoo, group, filled) == {"1": "0"}
    assert f"New offsets, which no import removes: {filled}-1 of {group}" in tool.out
    assert tool("reset", "--group", group, "--topic", f"{filled}:1", "--to-earliest", "--execute") == 0
    assert tool.out.endswith("Nothing to write: ZooKeeper has these offsets.\n")


def test_writes_to_groups_with_live_members_are_refused(
    tool: Tool, kazoo: KazooClient, filled: str, group: str, tmp_path: Path
) -> None:
    put(kazoo, group, filled, {0: "4"})
    (tmp_path / "in.txt").write_text(f"/consumers/{group}/offsets/{filled}/0:9\n")
    with consumer(kazoo, group, filled) as name:
        for arguments in (
            ["reset", "--group", group, "--topic", filled, "--to-earliest", "--execute"],
            ["import", "--file", "in.txt", "--execute"],
            ["delete", "--group", group, "--execute"],
        ):
            assert tool(*arguments, kafka=arguments[0] != "delete") == 1
            assert tool.err == f"odradek: group {group} has live members: {name}: stop them first\n"
    assert stored(kazoo, group, filled) == {"0": "4"}
    assert [path.name for path in tmp_path.iterdir()] == ["in.txt"]


def test_an_exported_file_can_be_imported(
    tool: Tool, kazoo: KazooClient, filled: str, group: str, tmp_path: Path
) -> None:
    put(kazoo, group, filled, {0: "4", 1: "7", "1-0": "812"})
    assert tool("export", "--group", group, kafka=False) == 1
    paths = [f"/consumers/{group}/offsets/{filled}/{partition}" for partition in (0, 1)]
    assert sorted(tool.out.splitlines()) == [f"{paths[0]}:4", f"{paths[1]}:7"]
    assert tool.err.startswith(f"/consumers/{group}/offsets/{filled}/1-0: ")
    kazoo.delete(f"/consumers/{group}/offsets/{filled}/1-0")
    assert tool("export", "--all-groups", "--output", "out.txt", kafka=False) == 0
    assert tool.out == "Wrote 2 offsets of 1 group to out.txt.\n"
    put(kazoo, group, filled, {0: "0", 1: "1"})
    assert tool("import", "--file", "out.txt", kafka=False) == 0
    assert tool.out.endswith("Nothing was written: add --execute.\n")
    found = tool.json("import", "--file", "out.txt", "--execute")
    assert (tool.code, found["executed"], [row["before"] for row in sorted(found["offsets"], key=str)]) == (
        0,
        True,
        [0, 1],
    )
    assert stored(kazoo, group, filled) == {"0": "4", "1": "7"}
    assert sorted(Path(found["undo_file"]).read_text().splitlines()) == [f"{paths[0]}:0", f"{paths[1]}:1"]
    assert tool("export", "--all-groups", "--output", "out.txt", kafka=False) == 2
    assert tool.err == "odradek: --output out.txt exists and is not overwritten: give another file\n"


@pytest.mark.parametrize(
    ("rest", "message", "code"),
    [
        (
            "\n{path}/1:5\n",
            "--file in.txt, line 2: the line is empty: remove it",
            2,
        ),
        ("{path}/1:abc\n", "--file in.txt, line 2: 'abc' is not an offset, a whole number from 0 to", 2),
        ("{path}/1:99\n", "outside the log of {topic}-1, which has 0 to 10", 1),
        ("{path}/5:1\n", "topic {topic} has no partition 5 (it has 2)", 1),
    ],
)
def test_import_takes_a_whole_file_or_nothing(
    tool: Tool, kazoo: KazooClient, filled: str, group: str, tmp_path: Path, rest: str, message: str, code: int
) -> None:
    path = f"/consumers/{group}/offsets/{filled}"
    put(kazoo, group, filled, {0: "4"})
    (tmp_path / "in.txt").write_text(f"{path}/0:9\n" + rest.format(path=path))
    assert tool("import", "--file", "in.txt", "--execute") == code
    assert message.format(topic=filled) in tool.err
    assert tool.err.count("\n") == 1
    assert stored(kazoo, group, filled) == {"0": "4"}


def test_delete_removes_a_group_or_its_topic_and_keeps_an_undo_file(
    tool: Tool, kazoo: KazooClient, filled: str, group: str, tmp_path: Path
) -> None:
    put(kazoo, group, filled, {0: "4", 1: "?"})
    put(kazoo, group, "other", {0: "1"})
    assert tool("delete", "--group", group, kafka=False) == 0
    assert tool.out.endswith("Nothing was deleted: add --execute.\n")
    assert tool("delete", "--group", group, "--topic", filled, "--execute", kafka=False) == 0
    assert tool.err == f"/consumers/{group}/offsets/{filled}/1: '?' is not a whole number\n"
    assert undo_file(tmp_path).read_text() == f"/consumers/{group}/offsets/{filled}/0:4\n"
    assert (kazoo.exists(f"/consumers/{group}/offsets/{filled}"), stored(kazoo, group, "other")) == (None, {"0": "1"})
    assert tool("delete", "--group", group, "--execute", kafka=False) == 0
    assert kazoo.exists(f"/consumers/{group}") is None
    assert tool("delete", "--group", group, "--execute", kafka=False) == 2
    assert f"has no group {group}: " in tool.err


def test_compare_shows_the_differences_between_both_stores(
    tool: Tool, kazoo: KazooClient, admin: Admin, filled: str, group: str
) -> None:
    put(kazoo, group, filled, {0: "4"})
    assert tool("compare", "--group", group) == 1
    assert re.search(rf"^{group} +{filled} +0 +4 +- +only ZooKeeper$", tool.out, re.MULTILINE)
    admin.alter_group_offsets(group, {Tp(filled, 0): 6})
    assert tool("compare", "--all-groups") == 1
    assert re.search(rf"^{group} +{filled} +0 +4 +6 +\+2$", tool.out, re.MULTILINE)
    admin.alter_group_offsets(group, {Tp(filled, 0): 4})
    found = tool.json("compare", "--group", group)
    assert (tool.code, found["equal"]) == (0, True)
    assert found["offsets"] == [{"group": group, "topic": filled, "partition": 0, "zookeeper": 4, "kafka": 4}]


def test_groups_are_arguments_or_options(
    tool: Tool, kazoo: KazooClient, filled: str, group: str, tmp_path: Path
) -> None:
    out = tmp_path / "offsets.txt"
    put(kazoo, group, filled, {0: "4"})
    for words in (
        ["describe"], ["owners"], ["export", "--output", str(out)], ["compare"], ["delete"],
        ["migrate", "--to", "kafka"], ["reset", "--topic", filled, "--to-offset", "1"],
    ):  # fmt: skip
        codes, shown = [], []
        for form in ([group], ["--group", group]):
            out.unlink(missing_ok=True)
            codes.append(tool(words[0], *form, *words[1:], kafka=words[0] not in ("export", "delete")))
            shown.append(re.sub(r"before \d{4}-\S+", "before TIME", tool.out + tool.err))
        assert codes[0] == codes[1], words
        assert shown[0] == shown[1], words
        assert group in shown[0] or str(out) in shown[0], words


def test_the_list_says_where_the_reason_of_an_invalid_znode_is(
    tool: Tool, kazoo: KazooClient, filled: str, group: str
) -> None:
    put(kazoo, group, filled, {0: "4"})
    assert tool("groups", kafka=False) == 0
    assert "gives the reason" not in tool.err
    assert tool("groups", "--json-field", "offset", kafka=False) == 0
    assert "with the same --path and --json-field gives the reason of each invalid znode" in tool.err


def test_wrong_input_is_one_line_with_exit_code_2(tool: Tool, connect: str, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, message in [
        (["describe"], "missing argument 'GROUP', '--group' or '--all-groups'"),
        (["owners"], "missing argument 'GROUP' or '--group': odradek zookeeper groups lists the groups"),
        (
            ["reset", "g", "h", "--topic", "t", "--to-latest"],
            "the groups g, h are named: reset takes one",
        ),
        (["reset", "--group", "g", "--topic", "t"], "zookeeper reset: the target is missing"),
        (["reset", "--group", "g", "--topic", "t", "--to-latest", "--to-offset", "1"], "cannot be used together"),
        (["reset", "--group", "a/b", "--topic", "t", "--to-latest"], "no path of ZooKeeper can hold this name"),
        (["migrate", "--to", "mars", "--group", "g"], "--to 'mars': expected kafka or zookeeper"),
        (["migrate", "--to", "kafka", "--group", "g", "--on-conflict", "x"], "--on-conflict 'x': one of fail"),
        (
            ["describe", "--group", "g", "--path", "/x/{partition}"],
            "--path '/x/{partition}' has no {group}: add --path-group",
        ),
        (["import", "--file", "none.txt"], "--file none.txt: No such file"),
    ]:
        assert tool(*arguments) == 2, arguments
        assert tool.err.count("\n") == 1
        assert message in tool.err
    assert run(["zookeeper", "groups"]) == 2
    assert "missing option '--zookeeper'" in capsys.readouterr().err
    assert run(["zookeeper", "compare", "--group", "g", "-z", connect]) == 2
    assert "missing option '--bootstrap-server': Kafka has the other offsets" in capsys.readouterr().err


def test_the_session_comes_from_a_file(connect: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                       monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    file = tmp_path / "zookeeper.properties"
    file.write_text(f"zookeeper.connect={connect}\nzookeeper.session.timeout.ms=4000\n")
    assert run(["zookeeper", "groups", "--zookeeper-config", str(file), "--json"]) == 0
    monkeypatch.setenv("ODRADEK_ZOOKEEPER_CONFIG", str(file))
    assert run(["zookeeper", "groups", "--json"]) == 0
    file.write_text(f"zookeeper.connect={connect}\nzookeeper.login=secret-without-a-user\n")
    capsys.readouterr()
    assert run(["zookeeper", "groups"]) == 2
    assert "secret" not in capsys.readouterr().err


def test_another_layout_is_described_and_reset(tool: Tool, kazoo: KazooClient, filled: str) -> None:
    kazoo.create("/storm/spout/partition_0", b'{"offset":3,"broker":{"host":"h"}}', makepath=True)
    layout = ["--path", "/storm/{group}/partition_{partition}", "--path-topic", filled, "--json-field", "offset"]
    (found,) = tool.json("describe", "--all-groups", *layout)
    assert (tool.code, found["partitions"][0]["lag"]) == (0, 7)
    assert tool("reset", "--group", "spout", "--all-topics", "--shift-by", "2", "--execute", *layout) == 0
    assert json.loads(kazoo.get("/storm/spout/partition_0")[0]) == {"offset": 5, "broker": {"host": "h"}}


def test_the_undo_file_is_written_first(
    tool: Tool, kazoo: KazooClient, filled: str, group: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from odradek.zookeeper.connection import ZooKeeperConnection
    from odradek.zookeeper.errors import ZnodeChanged

    def refuse(connection: ZooKeeperConnection, operations: object) -> None:
        assert undo_file(tmp_path).read_text() == f"/consumers/{group}/offsets/{filled}/0:4\n"
        raise ZnodeChanged("another writer was faster")

    put(kazoo, group, filled, {0: "4"})
    monkeypatch.setattr(ZooKeeperConnection, "commit", refuse)
    assert tool("reset", "--group", group, "--all-topics", "--to-latest", "--execute") == 1
    assert tool.err == "odradek: another writer was faster\n"
    undo_file(tmp_path).unlink()
    assert tool("delete", "--group", group, "--execute", kafka=False) == 1
    assert undo_file(tmp_path).exists()


def test_unknown_groups_and_unreachable_servers_are_reported(
    tool: Tool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in (["describe"], ["owners"], ["export"], ["migrate", "--to", "kafka"], ["delete"]):
        assert tool(*arguments, "--group", "typo", kafka=arguments[0] == "migrate") == 2
        assert tool.err == (
            f"odradek: ZooKeeper {tool.connect} has no group typo: odradek zookeeper groups lists the groups\n"
        )
    assert tool("migrate", "--to", "zookeeper", "--group", "typo") == 2
    assert tool.err == "odradek: Kafka has no offsets of group typo: odradek groups list shows the groups\n"
    assert tool("compare", "--group", "typo") == 2
    assert tool.err.startswith("odradek: neither ZooKeeper nor Kafka has an offset of group typo: ")
    file = tmp_path / "zookeeper.properties"
    file.write_text("zookeeper.connection.timeout.ms=300\nzookeeper.connect=127.0.0.1:1\n")
    assert run(["zookeeper", "groups", "--zookeeper-config", str(file)]) == 1
    assert capsys.readouterr().err == (
        "odradek: no node of ZooKeeper at 127.0.0.1:1 answered within the 300 ms of "
        "zookeeper.connection.timeout.ms (Connection refused): check the "
        "addresses, and that the nodes run; for a TLS port set zookeeper.ssl.client.enable=true\n"
    )
    file.write_text("zookeeper.connection.timeout.ms=300\n")
    assert run(["zookeeper", "groups", "--zookeeper-config", str(file), "-z", "no-such-host.invalid"]) == 1
    assert "(no-such-host.invalid has no address): check the addresses" in capsys.readouterr().err


def test_an_unknown_topic_is_refused_by_delete_and_reported_by_describe(
    tool: Tool, kazoo: KazooClient, filled: str, group: str, tmp_path: Path
) -> None:
    assert (tool("describe", "--all-groups"), tool.out) == (0, "No groups.\n")
    put(kazoo, group, filled, {0: "4"})
    assert tool("delete", "--group", group, "--topic", "typo", "--execute", kafka=False) == 2
    assert tool.err == (
        f"odradek: ZooKeeper has no offsets of topic typo of group {group}: odradek zookeeper describe "
        "shows the topics\n"
    )
    assert list(tmp_path.iterdir()) == []
    assert tool("describe", "--group", group, "--topic", "typo") == 0
    assert tool.out == f"Group {group}: no offsets of topic typo in ZooKeeper.\n"
    assert tool("export", "--group", group, "--topic", "typo", "--output", "z.txt", kafka=False) == 2
    assert tool.err.startswith(f"odradek: ZooKeeper has no offsets of topic typo of group {group}")
    for command in (("describe",), ("export", "--output", "z.txt"), ("delete",)):
        assert tool(*command, "--group", group, "--topic", "", kafka=command == ("describe",)) == 2
        assert tool.err == f"odradek: --topic is empty: give TOPIC (see odradek zookeeper {command[0]} --help)\n"


def test_a_wrong_file_of_the_session_is_named_with_its_line(
    tool: Tool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "z.properties"
    options = ["--zookeeper-config", "z.properties"]
    assert tool("groups", *options, kafka=False) == 2
    assert (
        tool.err
        == "odradek: --zookeeper-config z.properties: No such file or directory: give the path of a file that exists\n"
    )
    file.write_text("# a comment\nzookeeper.foo=1\n")
    assert tool("groups", *options, kafka=False) == 2
    assert tool.err.startswith("odradek: --zookeeper-config z.properties, line 2: zookeeper.foo: not a setting")
    monkeypatch.setenv("ODRADEK_ZOOKEEPER_CONFIG", "z.properties")
    assert tool("groups", kafka=False) == 2
    assert tool.err.startswith("odradek: ODRADEK_ZOOKEEPER_CONFIG z.properties, line 2: ")
    for name, message in (("truststore", "has no certificate in PEM"), ("keystore", "needs a certificate and its key")):
        file.write_text(f"zookeeper.ssl.client.enable=true\nzookeeper.ssl.{name}.location=z.properties\n")
        assert tool("groups", *options, kafka=False) == 2
        assert tool.err.startswith(f"odradek: zookeeper.ssl.{name}.location: z.properties {message}")
        assert tool.err.count("\n") == 1


def test_without_permission_a_command_is_one_line(
    tool: Tool, kazoo: KazooClient, filled: str, group: str, tmp_path: Path
) -> None:
    """The error names the path whose access list refuses. To create or delete a znode, this is the parent's path."""
    folder = f"/consumers/{group}/offsets/{filled}"
    put(kazoo, group, filled, {0: "4"})
    (tmp_path / "in.txt").write_text(f"{folder}/0:9\n")
    (tmp_path / "login.properties").write_text("zookeeper.login=kafka:wrong\n")
    everything = make_digest_acl("kafka", "secret", all=True)
    read_only = [everything, make_acl("world", "anyone", read=True)]
    login = "log in as a user of its access list, with the right password (zookeeper.login in a file, or"
    commands: list[list[str]] = [
        ["reset", "--group", group, "--topic", f"{filled}:0", "--to-latest", "--execute"],
        ["import", "--file", "in.txt", "--execute"],
    ]
    kazoo.add_auth("digest", "kafka:secret")
    kazoo.set_acls(f"{folder}/0", read_only)
    for arguments in commands:
        assert tool(*arguments) == 1
        assert f"no permission for {folder}/0: {login}" in tool.err
        assert tool.err.count("\n") == 1
    kazoo.set_acls(folder, read_only)
    for arguments in (
        ["reset", "--group", group, "--topic", f"{filled}:1", "--to-latest", "--execute"],
        ["delete", "--group", group, "--execute"],
    ):
        assert tool(*arguments, kafka=arguments[0] == "reset") == 1
        assert f"no permission for {folder}: {login}" in tool.err
        assert tool.err.count("\n") == 1
    kazoo.set_acls(f"{folder}/0", [everything])
    for arguments in (*commands, ["describe", "--group", group], ["compare", "--group", group],
                      ["migrate", "--to", "kafka", "--group", group, "--execute"],
                      ["migrate", "--to", "zookeeper", "--group", group, "--execute"]):  # fmt: skip
        assert tool(*arguments, "--zookeeper-config", "login.properties") == 1
        assert f"no permission for {folder}/0 as user kafka: {login}" in tool.err
        assert tool.err.count("\n") == 1
        assert "wrong" not in tool.err
    assert stored(kazoo, group, filled) == {"0": "4"}


# --- migration -------------------------------------------------------------------------------------------------------


def in_kafka(admin: Admin, group: str) -> dict[str, str]:
    return {str(tp.partition): str(found.offset) for tp, found in admin.list_group_offsets(group).items()}


def test_a_migration_to_kafka_commits_the_offsets_in_zookeeper(
    tool: Tool, kazoo: KazooClient, admin: Admin, filled: str, group: str, tmp_path: Path
) -> None:
    put(kazoo, group, filled, {0: "4", 1: "7"})
    assert tool("migrate", "--to", "kafka", "--group", group) == 0
    assert (in_kafka(admin, group), list(tmp_path.iterdir())) == ({}, [])
    assert "Nothing was written: add --execute." in tool.out
    assert tool("migrate", "--to", "kafka", "--group", group, "--execute") == 0
    assert in_kafka(admin, group) == stored(kazoo, group, filled) == {"0": "4", "1": "7"}
    assert "expire after 10080 minutes (offsets.retention.minutes)" in tool.out
    assert tool("compare", "--group", group) == 0
    assert tool("migrate", "--to", "kafka", "--group", group, "--execute") == 0
    assert tool.out.endswith("Nothing to write: the target has these offsets.\n")
    with Consumer(tool.bootstrap, group_id=group, auto_offset_reset="none") as reader:
        reader.assign([Tp(filled, 0), Tp(filled, 1)])
        assert {tp.partition: reader.position(tp) for tp in reader.assignment()} == {0: 4, 1: 7}


def test_a_migration_counts_only_the_groups_that_it_has_written(
    tool: Tool, kazoo: KazooClient, admin: Admin, filled: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from odradek.zookeeper import migration
    from odradek.zookeeper.errors import ZnodeChanged

    write = migration.execute

    def refuse_one(store: OffsetStore, to: Admin, plan: migration.GroupMigration) -> None:
        if plan.group == group:
            raise ZnodeChanged("another writer was faster")
        write(store, to, plan)

    other = f"{group}-other"
    put(kazoo, group, filled, {0: "4", 1: "7"})
    put(kazoo, other, filled, {0: "5"})
    with monkeypatch.context() as patched:
        patched.setattr(migration, "execute", refuse_one)
        assert tool("migrate", "--to", "kafka", "--group", group, "--group", other, "--execute") == 1
    assert "Wrote 1 offset of 1 group to Kafka.\n" in tool.out
    assert tool.err == f"odradek: group {group}: another writer was faster\n"
    assert (in_kafka(admin, group), in_kafka(admin, other)) == ({}, {"0": "5"})
    assert tool("migrate", "--to", "kafka", "--group", f"{group}-none", "--execute") == 2
    assert tool("migrate", "--to", "kafka", "--group", group, "--json", "--execute") == 0
    assert [one["written"] for one in json.loads(tool.out)["groups"]] == [True]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [("source", {"0": "4", "1": "7"}), ("target", {"0": "6", "1": "5"}), ("largest", {"0": "6", "1": "7"})],
)
@pytest.mark.parametrize("to", ["kafka", "zookeeper"])
def test_a_conflict_stops_a_migration_or_is_solved_by_the_option(
    tool: Tool, kazoo: KazooClient, admin: Admin, filled: str, group: str, tmp_path: Path, to: str, rule: str,
    expected: dict[str, str],
) -> None:  # fmt: skip
    source, target = {0: 4, 1: 7}, {0: 6, 1: 5}
    in_zookeeper, kafkas = (source, target) if to == "kafka" else (target, source)
    put(kazoo, group, filled, {n: str(offset) for n, offset in in_zookeeper.items()})
    admin.alter_group_offsets(group, {Tp(filled, n): offset for n, offset in kafkas.items()})
    assert tool("migrate", "--to", to, "--group", group, "--execute") == 1
    assert f"the target has other offsets than the source: {filled}-0 (4 and 6), {filled}-1 (7 and 5)" in tool.err
    assert list(tmp_path.iterdir()) == []
    assert tool("migrate", "--to", to, "--group", group, "--on-conflict", rule, "--execute") == 0
    after = in_kafka(admin, group) if to == "kafka" else stored(kazoo, group, filled)
    assert after == expected
    if rule == "target":
        return
    undo = undo_file(tmp_path)
    if to == "kafka":
        assert run(["groups", "reset", "--from-file", str(undo), "--execute", "-b", tool.bootstrap]) == 0
        assert in_kafka(admin, group) == {"0": "6", "1": "5"}
    else:
        assert tool("import", "--file", str(undo), "--execute", "--undo-file", "second.txt") == 0
        assert stored(kazoo, group, filled) == {"0": "6", "1": "5"}


def test_migration_to_zookeeper_tells_what_is_left_behind(
    tool: Tool, kazoo: KazooClient, admin: Admin, filled: str, group: str
) -> None:
    from odradek import OffsetAndMetadata

    admin.alter_group_offsets(group, {Tp(filled, 0): OffsetAndMetadata(3, 0, "why"), Tp(filled, 1): 2})
    assert tool("migrate", "--to", "zookeeper", "--group", group, "--execute") == 0
    assert stored(kazoo, group, filled) == {"0": "3", "1": "2"}
    assert "Not copied: the time of each commit, 1 metadata text and 1 leader epoch." in tool.out
    odd = f"{group}/with-a-slash"
    admin.alter_group_offsets(odd, {Tp(filled, 0): 3})
    assert tool("migrate", "--to", "zookeeper", "--group", odd, "--execute") == 1
    assert "no path of ZooKeeper can hold this name: it has a slash" in tool.err


def test_migration_refuses_live_members_of_either_side(
    tool: Tool, kazoo: KazooClient, admin: Admin, filled: str, group: str, bootstrap: str
) -> None:
    put(kazoo, group, filled, {0: "4"})
    with consumer(kazoo, group, filled) as name:
        assert tool("migrate", "--to", "kafka", "--group", group, "--execute") == 1
        assert f"group {group} has live members in ZooKeeper: {name}: stop them first" in tool.err
    with Consumer(bootstrap, group_id=group, client_id="reader", auto_offset_reset="earliest") as reader:
        reader.subscribe([filled])
        while not reader.assignment():
            reader.poll(0.1)
        for to in ("kafka", "zookeeper"):
            assert tool("migrate", "--to", to, "--group", group, "--execute") == 1
            assert re.search(
                rf"group {group} has live members in Kafka \(Stable\): reader \(.*\): stop them first", tool.err
            )
    assert stored(kazoo, group, filled) == {"0": "4"}


def test_what_is_no_offset_stops_a_migration_or_is_left_out(
    tool: Tool, kazoo: KazooClient, admin: Admin, filled: str, group: str
) -> None:
    put(kazoo, group, filled, {0: "4", 1: "11", "1-0": "5"})
    found = tool.json("migrate", "--to", "kafka", "--group", group, "--execute")
    assert (tool.code, in_kafka(admin, group)) == (1, {})
    reasons = {one["where"].rpartition("/")[2]: one["reason"] for one in found["groups"][0]["skipped"]}
    assert reasons["1"] == f"offset 11 is outside the log of {filled}-1, which has 0 to 10"
    assert "byte positions" in reasons["1-0"]
    assert tool("migrate", "--to", "kafka", "--group", group, "--skip-invalid", "--execute") == 0
    assert in_kafka(admin, group) == {"0": "4"}


def test_a_znode_in_the_way_stops_a_migration(
    tool: Tool, kazoo: KazooClient, admin: Admin, filled: str, group: str
) -> None:
    put(kazoo, group, filled, {0: "?"})
    admin.alter_group_offsets(group, {Tp(filled, 0): 3, Tp(filled, 1): 3})
    assert tool("migrate", "--to", "zookeeper", "--group", group, "--execute") == 1
    assert f"/consumers/{group}/offsets/{filled}/0 has no valid offset: '?' is not a whole number" in tool.err
    assert stored(kazoo, group, filled) == {"0": "?"}
    assert tool("reset", "--group", group, "--topic", filled, "--to-latest", "--execute") == 1
    remedy = re.search(r"has no valid offset: .*; odradek zookeeper (delete .* --execute) deletes it", tool.err)
    assert remedy is not None
    assert tool(*shlex.split(remedy[1]), kafka=False) == 0, tool.err
    assert tool("reset", "--group", group, "--topic", filled, "--to-latest", "--execute") == 0
    assert stored(kazoo, group, filled) == {"0": "10", "1": "10"}
