"""``odradek top`` as a command: one view of a cluster and of a running monitor, and its wrong inputs."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.brokers import unique
from support.monitor_view import ODD_NAMES, ViewFollower, served
from support.publish import create_topic, numbers, publish

from odradek import Admin, TopicPartition
from odradek.cli.main import run
from odradek.core.ids import OffsetAndMetadata

pytest.importorskip("starlette", reason="the extra ui is not installed")
pytest.importorskip("jinja2", reason="the extra ui is not installed")

Capture = pytest.CaptureFixture[str]
NOWHERE = "127.0.0.1:1"
TOKEN = "t" * 32


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served(ViewFollower(more=1_500), TOKEN) as address:
        yield address


@pytest.fixture
def token_file(tmp_path: Path) -> str:
    path = tmp_path / "token"
    path.write_text(TOKEN)
    return str(path)


def test_one_view_of_a_cluster_as_json_and_as_a_table(bootstrap: str, capsys: Capture) -> None:
    topic, group = unique("topped"), unique("top")
    create_topic(bootstrap, topic)
    publish(bootstrap, topic, numbers(50))
    with Admin(bootstrap) as admin:
        admin.alter_group_offsets(group, {TopicPartition(topic, 0): OffsetAndMetadata(20)})
        before = {one.group_id for one in admin.list_groups()}
    assert run(["top", "-b", bootstrap, "--once", "--json", "--search", group]) == 0
    (row,) = json.loads(capsys.readouterr().out)["groups"]
    assert (row["group"], row["lag"], row["partitions"], row["state"]) == (group, 30, 1, "Empty")
    assert run(["top", "-b", bootstrap, "--once", "--search", group]) == 0
    head, line = capsys.readouterr().out.splitlines()
    assert head.split()[:4] == ["Group", "Status", "State", "Lag"]
    assert line.split()[:4] == [group, "ERR", "Empty", "30"]  # STOP: its one commit is older than the poll
    assert run(["top", "-b", bootstrap, "--once", "--json", "--group", group]) == 0
    (partition,) = json.loads(capsys.readouterr().out)["partitions"]
    assert (partition["topic"], partition["lag"], partition["committed_offset"]) == (topic, 30, 20)
    with Admin(bootstrap) as admin:
        assert {one.group_id for one in admin.list_groups()} <= before  # groups of other tests may end meanwhile


def test_one_view_of_a_monitor_has_all_groups_of_its_api(url: str, token_file: str, capsys: Capture) -> None:
    line = ["top", "--url", url, "--token-file", token_file, "--once"]
    assert run([*line, "--json", "--sort", "-lag"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found["total"] == len(found["groups"]) > 1_500
    lags = [row["lag"] for row in found["groups"]]
    assert lags == sorted(lags, reverse=True)
    assert run([*line, "--group", "reset"]) == 0
    text = capsys.readouterr().out
    assert "Group reset: ERR" in text
    assert "rewind (certain): orders-0" in text
    assert "record 0:" in text
    for name in ODD_NAMES:
        assert run([*line, "--group", name, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["group"] == name


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        ((), 2, "missing option '-b' (a cluster) or '--url' (a running monitor)"),
        (("-b", NOWHERE, "--url", "http://127.0.0.1:1"), 2, "-b and --url exclude each other"),
        (("-b", NOWHERE, "--token-file", "token"), 2, "--token-file is for --url"),
        (("-b", NOWHERE, "--sort", "age"), 2, "--sort 'age': expected name, lag"),
        (("-b", NOWHERE, "--source", "zookeeper"), 2, "--source 'zookeeper'"),
        (("-b", NOWHERE, "--interval", "0s"), 2, "--interval 0s: expected at least 100 ms"),
        (("-b", NOWHERE), 1, "127.0.0.1:1"),
        (("--url", "http://127.0.0.1:1"), 1, "http://127.0.0.1:1: Connection refused: is `odradek monitor` running"),
        (("--url", "ftp://127.0.0.1"), 2, "expected an address such as http://127.0.0.1:8000"),
        (("--url", "http://127.0.0.1:1", "--intervals", "5"), 2, "--intervals is for -b"),
        (("--url", "http://127.0.0.1:1", "--timeout", "7"), 2, "--timeout is for -b"),
    ],
)
def test_a_wrong_line_is_one_line(options: tuple[str, ...], code: int, says: str, capsys: Capture) -> None:
    assert run(["top", "--once", *options]) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line


def test_a_monitor_refuses_another_token(url: str, capsys: Capture) -> None:
    assert run(["top", "--url", url, "--once"]) == 2
    assert "demands another token: give --token-file" in capsys.readouterr().err


def test_an_unknown_group_is_named(url: str, token_file: str, capsys: Capture) -> None:
    assert run(["top", "--url", url, "--token-file", token_file, "--once", "--group", "none"]) == 2
    assert "--group 'none': there is no such group" in capsys.readouterr().err


def test_a_screen_needs_a_terminal_and_json_one_view(capsys: Capture) -> None:
    assert run(["top", "-b", NOWHERE, "--json"]) == 2
    assert "--json needs --once" in capsys.readouterr().err
    assert run(["top", "-b", NOWHERE]) == 2
    assert "add --once" in capsys.readouterr().err


def test_without_textual_it_names_the_extra(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "textual" else find(name))
    assert run(["top", "-b", NOWHERE]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "needs textual" in line
    assert "[ui]" in line


@pytest.mark.parametrize("line", [["--help"], ["top", "--help"], ["groups", "--help"]])
def test_help_loads_neither_textual_nor_arrow(line: list[str]) -> None:
    program = (
        "import sys, odradek.cli.main as m\n"
        f"m.run({line!r})\n"
        "heavy = {'textual', 'mcp', 'numpy', 'pyarrow', 'starlette'} & sys.modules.keys()\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)


def test_the_view_of_a_monitor_needs_no_arrow(url: str, token_file: str) -> None:
    program = (
        "import sys, odradek.cli.main as m\n"
        f"m.run(['top', '--url', {url!r}, '--token-file', {token_file!r}, '--once', '--group', 'slow'])\n"
        "heavy = {'numpy', 'pyarrow', 'numba'} & sys.modules.keys()\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)


def test_the_picture_in_the_docs_is_the_present_screen() -> None:
    pytest.importorskip("textual", reason="the extra ui is not installed")
    from support.top_picture import PICTURE, picture

    assert PICTURE.read_text(encoding="utf-8") == picture(), "run: PYTHONPATH=tests python -m support.top_picture"
