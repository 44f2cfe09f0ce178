"""``odradek monitor`` as a process, and its wrong inputs."""

from __future__ import annotations

import importlib.util
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.brokers import eventually, unique
from support.publish import create_topic, numbers, publish
from support.running_monitor import RunningMonitor

from odradek import Admin, TopicPartition
from odradek.cli.main import run
from odradek.cli.terminal import CommandError
from odradek.core.ids import OffsetAndMetadata

Capture = pytest.CaptureFixture[str]
NOWHERE = "127.0.0.1:1"


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("t" * 32 + "\n")
    return path


@pytest.fixture
def monitor(bootstrap: str, token_file: Path) -> Iterator[RunningMonitor]:
    running = RunningMonitor(
        bootstrap, "--interval", "1s", "--token-file", str(token_file), python=sys.executable
    )  # a test reads the memory of the process
    yield running
    running.process.kill()
    running.process.wait()


def test_the_process_serves_a_group_and_ends(bootstrap: str, monitor: RunningMonitor) -> None:
    topic, group = unique("monitored"), unique("served")
    create_topic(bootstrap, topic)
    publish(bootstrap, topic, numbers(50))
    with Admin(bootstrap) as admin:
        admin.alter_group_offsets(group, {TopicPartition(topic, 0): OffsetAndMetadata(20)})
    bearer = {"Authorization": "Bearer " + "t" * 32}
    line = f'kafka_consumergroup_group_sum_lag{{cluster_name="kafka",group="{group}"}} 30'
    eventually(lambda: line in monitor.get("/metrics", **bearer)[1], what="the group's lag")
    assert monitor.get("/readyz")[0] == 200
    assert monitor.get("/metrics")[0] == 401
    assert monitor.get("/metrics", Host="evil.example", **bearer)[0] == 403
    status = json.loads(monitor.get(f"/v3/kafka/kafka/consumer/{group}/lag", **bearer)[1])["status"]
    assert (status["totallag"], status["partition_count"]) == (30, 1)
    assert monitor.end() in (-15, 143)


def test_without_a_cluster_it_keeps_trying_and_is_not_ready() -> None:
    running = RunningMonitor(NOWHERE)
    try:
        eventually(lambda: "127.0.0.1:1" in running.get("/readyz")[1], what="the reason")
        assert running.get("/readyz")[0] == 503
        assert running.get("/healthz")[0] == 200
    finally:
        running.end()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--listen", "nonsense"), "--listen 'nonsense': expected HOST:PORT"),
        (("--listen", "127.0.0.1:99999"), "--listen '127.0.0.1:99999'"),
        (("--listen", "0.0.0.0:0"), "--listen 0.0.0.0: other machines can connect to it: give --token-file"),
        (("--listen", "[::]:0"), "--listen ::: other machines can connect"),
        (("--interval", "soon"), "--interval 'soon'"),
        (("--interval", "0s"), "--interval 0s: expected at least 100 ms"),
        (("--source", "zookeeper"), "--source 'zookeeper': expected auto, topic, fetch"),
        (("--metrics-granularity", "fine"), "--metrics-granularity 'fine': expected auto, group, topic, partition"),
        (("--token-file", "/no/such/file"), "--token-file /no/such/file: No such file"),
        (("--allow", "reset"), "--allow reset needs --data DIR: the offsets before each change are kept there first"),
        (("--allow", "reset,fly"), "--allow 'fly': expected reset, delete-offsets, delete-group"),
        (("--change-token-file", "/no/such/file"), "--change-token-file /no/such/file: No such file"),
        (("--intervals", "0"), "--intervals"),
        (("--minimum-complete", "2"), "--minimum-complete"),
    ],
)
def test_a_wrong_option_is_one_line(options: tuple[str, ...], says: str, capsys: Capture) -> None:
    assert run(["monitor", "-b", NOWHERE, *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line


def test_a_short_token_is_refused(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "token"
    path.write_text("secret")
    assert run(["monitor", "-b", NOWHERE, "--token-file", str(path)]) == 2
    assert "openssl rand" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("alice", "line 1: expected NAME TOKEN"),
        ("alice short", "line 1: the token has fewer than 16 characters"),
        (f"alice {'a' * 32}\nalice {'b' * 32}", "line 2: the name alice occurs twice"),
        (f"alice {'a' * 32}\n\nbob {'a' * 32}", "line 3: another name has this token"),
        (f"reader {'a' * 32}", "line 1: the name reader is reserved"),
        (f"alice {'t' * 32}", "line 1: another name has this token"),
        ("# nothing", "it has no tokens"),
    ],
)
def test_a_wrong_file_of_change_tokens_is_one_line(
    text: str, says: str, tmp_path: Path, token_file: Path, capsys: Capture
) -> None:
    path = tmp_path / "change-tokens"
    path.write_text(text)
    options = ["--token-file", str(token_file), "--data", str(tmp_path / "data"), "--allow", "reset"]
    assert run(["monitor", "-b", NOWHERE, *options, "--change-token-file", str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"--change-token-file {path}" in line
    assert says in line


def test_a_token_to_read_demands_one_to_change(tmp_path: Path, token_file: Path, capsys: Capture) -> None:
    given = ["--token-file", str(token_file), "--data", str(tmp_path / "data")]
    assert run(["monitor", "-b", NOWHERE, *given, "--allow", "reset"]) == 2
    assert "--allow reset with --token-file needs --change-token-file FILE" in capsys.readouterr().err
    path = tmp_path / "change-tokens"
    path.write_text("alice " + "a" * 32)
    assert run(["monitor", "-b", NOWHERE, *given, "--change-token-file", str(path)]) == 2
    assert "--change-token-file needs --allow" in capsys.readouterr().err


def test_a_port_in_use_is_named(capsys: Capture) -> None:
    pytest.importorskip("starlette", reason="the extra ui is not installed")
    pytest.importorskip("jinja2", reason="the extra ui is not installed")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert run(["monitor", "-b", NOWHERE, "--listen", address]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"--listen {address}: Address already in use" in line


def test_the_command_line_loads_no_web_server() -> None:
    program = (
        "import sys, odradek.cli.main as m\n"
        "m.run(['monitor', '--help'])\n"
        "assert not {'starlette', 'uvicorn', 'numpy', 'pyarrow'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)


def test_without_its_packages_it_names_the_extra_of_all(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """The extra `arrow` alone would be the first of two installations."""
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pyarrow" else find(name))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert run(["monitor", "-b", NOWHERE]) == 2
    assert "[ui]" in capsys.readouterr().err


def test_a_slow_start_is_announced(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    def slow_start(*given: object) -> None:
        eventually(lambda: "The monitor is starting." in capsys.readouterr().err, what="a line")
        raise CommandError("started")

    monkeypatch.setattr("odradek.cli.monitor.monitor.make_reader", slow_start)
    assert run(["monitor", "-b", NOWHERE, "--listen", "127.0.0.1:0"]) == 2


def test_its_process_loads_no_pandas() -> None:
    """pyarrow would load it for the first array that it makes of a list; others can still import it afterwards."""
    pytest.importorskip("pandas")
    program = (
        "import sys\n"
        "from odradek.monitor.process_memory import load_arrow\n"
        "load_arrow()\n"
        "import odradek.monitor.offsets_reader, pyarrow as pa\n"
        "pa.array([1, 2])\n"
        "assert 'pandas' not in sys.modules\n"
        "import pandas\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.skipif(sys.platform != "linux", reason="the process gives memory back on Linux")
def test_a_running_monitor_has_given_back_the_code_of_the_compiler(bootstrap: str, monitor: RunningMonitor) -> None:
    """The load of kernels has read 70 MB of it. The kernels work without it: the view is complete."""
    eventually(lambda: monitor.get("/readyz")[0] == 200, within_s=60, what="the view")
    resident, is_compiler = 0, False
    for line in Path(f"/proc/{monitor.process.pid}/smaps").read_text().splitlines():
        if "-" in line.split()[0]:
            is_compiler = line.endswith("libllvmlite.so")
        elif is_compiler and line.startswith("Rss:"):
            resident += int(line.split()[1])
    assert 0 < resident < 20_000
