"""Names from a cluster must not control a terminal: every tool shows control characters as escapes.

The names in these tests contain an escape sequence that sets the terminal's title, the one-byte form (C1) of CSI, DEL,
a character that changes the direction of the text, rich's markup, and a line feed with a forged line after it.
"""

from __future__ import annotations

import io
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from rich.console import Console
from support.forks import odradek_command
from support.scripted import ScriptedCluster, scripted

from odradek.cli import terminal
from odradek.cli.main import run
from odradek.client import Admin, NewTopic, OffsetAndMetadata
from odradek.client.producer import Producer
from odradek.core.errors import ErrorCode
from odradek.core.ids import TopicPartition
from odradek.lag.describe import GroupLag, LagRow
from odradek.lag.table import format_groups, format_table, lost_notices, notice

Capture = pytest.CaptureFixture[str]

EVIL = "evil\x1b]0;owned\x07\x9b31m\x7f\u202e[red]x[/red]\u2066\r\nFORGED"
SHOWN = r"evil\x1b]0;owned\x07\x9b31m\x7f\u202e[red]x[/red]\u2066\r\nFORGED"
ACTIVE = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def assert_harmless(text: str) -> None:
    assert ACTIVE.findall(text) == []
    assert [line for line in text.split("\n") if line.startswith("FORGED")] == []


def node(cluster: ScriptedCluster, **more: Any) -> dict[str, Any]:
    """The single broker with its real address, so that it can be reached."""
    broker = cluster.brokers[1]
    return {"node_id": 1, "host": "127.0.0.1", "port": broker.port, "error_code": 0} | more


@pytest.fixture
def hostile() -> Iterator[ScriptedCluster]:
    """A cluster whose topics, groups, members, settings and messages have names that control a terminal."""
    with scripted() as cluster:
        cluster.log = [(9, b"")]
        broker = cluster.brokers[1]
        member = {
            "member_id": EVIL, "group_instance_id": EVIL, "client_id": EVIL, "client_host": EVIL,
            "member_metadata": b"", "member_assignment": b"",
        }  # fmt: skip
        described = {
            "error_code": 0, "group_id": EVIL, "group_state": "Stable", "protocol_type": "consumer",
            "protocol_data": EVIL, "members": [member], "authorized_operations": 0, "error_message": None,
        }  # fmt: skip
        listed = {"group_id": EVIL, "protocol_type": EVIL, "group_state": EVIL, "group_type": EVIL}
        commit = {
            "partition_index": 0, "committed_offset": 7, "committed_leader_epoch": -1, "metadata": EVIL, "error_code": 0
        }  # fmt: skip
        committed = [{"name": EVIL, "topic_id": UUID(int=7), "partitions": [commit]}]
        setting = {
            "name": EVIL, "value": EVIL, "read_only": False, "is_default": False, "config_source": 1,
            "is_sensitive": False, "synonyms": [], "config_type": 7, "documentation": None,
        }  # fmt: skip
        found = {
            "error_code": 0,
            "error_message": None,
            "resource_type": 2,
            "resource_name": EVIL,
            "configs": [setting],
        }
        row = {"partition_index": 0, "error_code": 0, "timestamp": -1, "offset": 9, "leader_epoch": 0}

        def metadata(message: Any, version: int) -> dict[str, Any]:
            reply = cluster.metadata(message)
            reply["topics"][0]["name"] = EVIL
            return reply

        broker.answers |= {
            2: lambda message, version: {"throttle_time": 0, "topics": [{"name": EVIL, "partitions": [row]}]},
            3: metadata,
            9: lambda message, version: {
                "throttle_time": 0, "topics": committed, "error_code": 0,
                "groups": [{"group_id": EVIL, "topics": committed, "error_code": 0}],
            },
            10: lambda message, version: node(cluster)
            | {"throttle_time": 0, "coordinators": [node(cluster) | {"key": EVIL, "error_message": None}]},
            15: lambda message, version: {"throttle_time": 0, "groups": [described]},
            16: lambda message, version: {"throttle_time": 0, "error_code": 0, "groups": [listed]},
            32: lambda message, version: {"throttle_time": 0, "results": [found]},
        }  # fmt: skip
        yield cluster


@pytest.mark.parametrize(
    ("line", "names"),
    [
        (["groups", "list"], 3),  # one name is shown as "Evil…", because group types are capitalised
        (["groups", "describe", "--group", EVIL], 2),
        (["groups", "members", "--group", EVIL, "--verbose"], 6),
        (["groups", "state", "--group", EVIL], 2),
        (["topics", "list"], 1),
        (["topics", "describe", EVIL, "--all-configs"], 3),
        (["groups", "reset", "--group", EVIL, "--topic", EVIL, "--to-earliest", "--dry-run"], 1),
    ],
    ids=lambda one: "-".join(one[:2]) if isinstance(one, list) else "",
)
def test_names_of_a_hostile_cluster_are_shown_with_escapes(
    hostile: ScriptedCluster, line: list[str], names: int, capsys: Capture
) -> None:
    run([*line, "-b", hostile.bootstrap])
    said = capsys.readouterr()
    assert_harmless(said.out)
    assert_harmless(said.err)
    assert (said.out + said.err).lower().count(SHOWN.lower()) >= names, said


@pytest.mark.parametrize("line", [["groups", "list"], ["groups", "members", "--group", EVIL], ["topics", "list"]])
def test_json_output_escapes_the_names_as_json(hostile: ScriptedCluster, line: list[str], capsys: Capture) -> None:
    assert run([*line, "--json", "-b", hostile.bootstrap]) == 0
    text = capsys.readouterr().out
    assert_harmless(text)
    assert EVIL in json.loads(text)[0].values()


def test_an_error_message_of_a_broker_is_one_harmless_line(hostile: ScriptedCluster, capsys: Capture) -> None:
    code = ErrorCode.group_authorization_failed.value
    refusal = node(hostile, error_code=code, error_message=EVIL, key=EVIL)
    hostile.brokers[1].answers[10] = lambda message, version: refusal | {"throttle_time": 0, "coordinators": [refusal]}
    assert run(["groups", "locate", "g", "-b", hostile.bootstrap]) == 1
    said = capsys.readouterr()
    assert_harmless(said.err)
    assert said.err.count("\n") == 1
    assert r"evil\x1b]0;owned\x07\x9b31m\x7f\u202e[red]x[/red]" in said.err


def test_tables_of_the_library_are_harmless() -> None:
    from odradek.client.model import GroupListing

    table = format_table([LagRow(EVIL, EVIL, 0, 1, 2, 1, EVIL, EVIL, EVIL)])
    assert_harmless(table)
    assert len(table.split("\n")) == 2
    assert table.count(SHOWN) == 5
    assert notice(EVIL, "Empty") == f"Consumer group '{SHOWN}' has no active members."
    (line,) = lost_notices(GroupLag(EVIL, "Empty", (LagRow(EVIL, EVIL, 0, 1, 2, 0),), {TopicPartition(EVIL, 0): 2}))
    assert line.startswith(
        f"Warning: {SHOWN}-0: group '{SHOWN}' committed 1, but the log now starts at 2: 1 record was"
    )
    listed = format_groups([GroupListing(EVIL, "consumer", EVIL, "classic")])
    assert_harmless(listed)
    assert len(listed.split("\n")) == 2


# --- records ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def recorded(bootstrap: str, admin: Admin, topic: str) -> str:
    admin.create_topics([NewTopic(topic, 1, 1)])
    with Producer(bootstrap) as producer:
        producer.send(topic, EVIL.encode(), key=EVIL.encode(), headers=[(EVIL, EVIL.encode())])
        producer.send(topic, None)
        producer.flush()
    return topic


@pytest.fixture
def admin(bootstrap: str) -> Iterator[Admin]:
    with Admin(bootstrap, default_api_timeout_ms=20_000) as made:
        yield made


def on_a_terminal(*line: str) -> str:
    """The output of a command on a pseudo-terminal."""
    ours, theirs = pty.openpty()
    with subprocess.Popen([*odradek_command(), *line], stdin=theirs, stdout=theirs, stderr=subprocess.PIPE) as process:
        os.close(theirs)
        text = b""
        while True:
            try:
                piece = os.read(ours, 65_536)
            except OSError:  # Linux raises this error when the other side is closed
                break
            if not piece:
                break
            text += piece
        assert process.wait(60) == 0, process.stderr.read() if process.stderr else ""
    os.close(ours)
    return text.decode().replace("\r\n", "\n")  # the terminal converts line feeds to \r\n


def test_each_value_on_a_terminal_is_one_harmless_line(bootstrap: str, recorded: str) -> None:
    assert on_a_terminal("consume", recorded, "-b", bootstrap) == f"{SHOWN}\nnull\n"
    text = on_a_terminal("consume", recorded, "--json", "-b", bootstrap)
    assert_harmless(text)
    first = json.loads(text.splitlines()[0])
    assert (first["key"], first["value"], first["headers"]) == (EVIL, EVIL, [{"key": EVIL, "value": EVIL}])


def test_values_are_written_to_a_file_unchanged(bootstrap: str, recorded: str) -> None:
    command = [*odradek_command(), "consume", recorded, "-b", bootstrap]
    assert subprocess.run(command, check=True, capture_output=True).stdout == EVIL.encode() + b"\nnull\n"


@pytest.fixture
def committed(bootstrap: str, admin: Admin, recorded: str) -> str:
    """Commits an offset with hostile metadata for a group with a hostile name. Returns the group's name."""
    admin.alter_group_offsets(EVIL, {TopicPartition(recorded, 0): OffsetAndMetadata(1, metadata=EVIL)})
    return EVIL


def test_the_records_of_the_offsets_topic_are_shown_with_escapes(
    bootstrap: str, committed: str, capsys: Capture
) -> None:
    assert run(["offsets", "dump", "--group", committed, "-b", bootstrap]) == 0
    lines = capsys.readouterr().out
    assert_harmless(lines)
    assert lines.count(SHOWN) >= 2
    assert run(["offsets", "dump", "--group", committed, "--json", "-b", bootstrap]) == 0
    lines = capsys.readouterr().out
    assert_harmless(lines)
    assert {json.loads(line)["key"]["data"]["group"] for line in lines.splitlines()} == {EVIL}


def test_the_history_and_its_page_are_harmless(bootstrap: str, committed: str, tmp_path: Path, capsys: Capture) -> None:
    page = tmp_path / "page.html"
    line = ["pipeline", "history", "--group", committed, "-b", bootstrap, "--report", str(page)]
    assert run([*line, "--expires-within", "60d"]) == 0
    said = capsys.readouterr().out
    assert_harmless(said)
    assert SHOWN in said
    shown = re.sub(r"<(script|style)\b.*?</\1>", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert_harmless(shown)
    assert shown.count(SHOWN) >= 3


def test_an_export_is_unchanged_in_a_file_and_harmless_on_a_terminal(
    bootstrap: str, committed: str, recorded: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = ["groups", "reset", "--group", committed, "--group", "other", "--topic", recorded, "--to-earliest"]
    line += ["--export", "-b", bootstrap]
    assert run(line) == 0
    exported = capsys.readouterr().out
    assert EVIL in exported
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(terminal, "_console", lambda: Console(file=io.StringIO()))
    assert run(line) == 0
    assert ACTIVE.findall(capsys.readouterr().out) == []


# --- rich, metrics, logs ---------------------------------------------------------------------------------------------


def test_rich_interprets_no_markup_in_labels() -> None:
    drawn = io.StringIO()
    console = Console(file=drawn, force_terminal=True, width=200)
    with terminal.progress(EVIL, 10, "records", console=console) as advance:
        advance(10)
    with terminal.spinner(EVIL, console) as say:
        say(f"second {EVIL}")
    assert "\x1b]0;" not in drawn.getvalue()
    assert "\x9b" not in drawn.getvalue()
    assert drawn.getvalue().count(SHOWN) >= 2


def test_labels_of_metrics_are_harmless() -> None:
    from odradek.spark.lag import Lag, QueryLag, prometheus_text

    lag = Lag({TopicPartition(EVIL, 0): 1}, 1.0)
    text = prometheus_text([QueryLag(EVIL, "id", 1, 1, 1, {0: lag})])
    assert_harmless(text)
    labels = re.findall(r'topic="((?:[^"\\]|\\.)*)"', text)
    assert len(labels) == 1
    assert re.findall(r"\\(.)", labels[0]) == ["\\"] * 7 + ["n"], "Prometheus has only these escapes"


_LOGGING = {
    "command": "from odradek.cli.main import run; run(['--version'])",
    "serve": "from pathlib import Path; from odradek.cli.broker import serve as s; from contextlib import suppress\n"
    "from odradek.cli.terminal import CommandError\n"
    "with suppress(CommandError): s.serve(Path('x'), 'no', [], exit_with_parent=False)",
    "broker": "from odradek.broker.__main__ import main; main(['x', 'nowhere:y'])",
}


@pytest.mark.parametrize("way", _LOGGING)
def test_a_record_of_the_log_is_one_harmless_line(way: str, tmp_path: Path) -> None:
    code = f"""
import logging
{_LOGGING[way]}
log = logging.getLogger("odradek.broker")
log.warning("begin")
log.warning("a client named %s", {EVIL!r})
try:
    raise ValueError({EVIL!r})
except ValueError:
    log.exception("it failed")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    said = done.stderr.partition("begin\n")[2]
    assert_harmless(said)
    assert f"a client named {SHOWN}\n" in said
    log_lines = [line for line in said.splitlines() if not line.startswith("  ")]
    assert len(log_lines) == 2, "no line of a traceback may look like a record"
