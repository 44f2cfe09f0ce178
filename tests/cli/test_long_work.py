"""What ``odradek produce`` and ``consume`` say while they wait or work long, and how they end at Ctrl-C."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.brokers import eventually, unique
from support.forks import odradek_command
from support.scripted import Reply, ScriptedCluster, fetch_reply, scripted

from odradek.cli.main import run
from odradek.cli.produce import produce
from odradek.cli.progress_lines import LinePace, progress_lines
from odradek.client import Admin, NewTopic, loop
from odradek.client.config import ClientConfig
from odradek.client.errors import RequestTimedOut
from odradek.client.producer import Producer
from odradek.client.reader import PartitionReader
from odradek.core.ids import LATEST, TopicPartition
from odradek.net import connection

Capture = pytest.CaptureFixture[str]
CONTROLS = b"a\x1b[31mred\x07"


@pytest.fixture
def at_once(pace_of_lines: LinePace) -> None:
    """The first line comes without a second of silence."""
    pace_of_lines.first_s = 0.0


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records are read only after the first line."""
    read = PartitionReader.read_batches

    def late(self: PartitionReader, start: int, end: int | None = None) -> object:
        time.sleep(0.5)
        return read(self, start, end)

    monkeypatch.setattr(PartitionReader, "read_batches", late)


def test_the_lines_come_after_growing_times_and_end_with_the_block(capsys: Capture) -> None:
    assert LinePace() == LinePace(first_s=1.0, growth=10)
    numbers = iter(range(100))
    third = threading.Event()

    def text() -> str | None:
        number = next(numbers)
        if number == 2:
            third.set()
        return None if number == 1 else f"line {number}\x07"

    with progress_lines(text, LinePace(first_s=0.02, growth=5)):
        assert third.wait(20)
    said = capsys.readouterr().err
    assert said == "line 0\\x07\nline 2\\x07\n"
    assert next(numbers) == 3


@pytest.mark.usefixtures("at_once", "waiting")
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([], "Reading {topic}: 0 of at most 20 records so far\n"),
        (["--grep", "nothing"], "Reading {topic}: 0 of at most 20 records so far, 0 chosen\n"),
        (["--key", "absent", "--output", "{folder}/r.csv"], "Reading {topic}: 0 of at most 20 records so far, 0 ch"),
        (["--output", "{folder}/r.parquet"], "Reading {topic}: 0 of at most 20 records so far\n"),
        (["--tail", "3"], "Reading {topic}: 0 of at most 20 records so far\n"),
    ],
)
def test_consume_says_what_it_reads(
    options: list[str], says: str, bootstrap: str, filled: str, tmp_path: Path, capsys: Capture
) -> None:
    options = [option.format(folder=tmp_path) for option in options]
    assert run(["consume", filled, *options, "-b", bootstrap]) == 0
    assert capsys.readouterr().err.startswith(says.format(topic=filled))


@pytest.mark.usefixtures("at_once")
def test_a_member_says_that_it_has_no_partition(bootstrap: str, filled: str, capsys: Capture) -> None:
    group = unique("cli")
    assert run(["consume", filled, "--group", group, "-b", bootstrap]) == 0
    first = capsys.readouterr().err.splitlines()[0]
    assert first == f"{filled}: group {group} has not assigned a partition to this member yet."


@pytest.mark.usefixtures("at_once")
def test_produce_says_that_it_waits_for_standard_input(bootstrap: str, admin: Admin, topic: str) -> None:
    """In a process, because standard input stays open."""
    admin.create_topics([NewTopic(topic, 1, 1)])
    line = [*odradek_command(), "produce", topic, "-b", bootstrap]
    pipe = subprocess.PIPE
    with subprocess.Popen(line, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stderr is not None
        said = process.stderr.readline()
        assert said == (
            f"Waiting for standard input: each line is a record of {topic}; its end (Ctrl-D) ends the command.\n"
        )
        out, _ = process.communicate("one\n", timeout=60)
        assert (process.returncode, out) == (0, f"1 record sent to {topic}, each acknowledged.\n")


# --- a broker that does not answer ----------------------------------------------------------------------------------


@pytest.fixture
def silent() -> Iterator[ScriptedCluster]:
    """A cluster whose broker answers everything but Fetch."""
    with scripted() as cluster:
        ended = threading.Event()

        def answer(message: object, version: int) -> Reply:
            ended.wait(30)
            return fetch_reply(cluster)

        cluster.brokers[1].answer_1 = answer
        yield cluster
        ended.set()


def test_a_request_without_a_reply_is_logged(
    silent: ScriptedCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connection, "SILENCE_S", 0.2)
    config = ClientConfig(bootstrap_servers=silent.bootstrap, default_api_timeout_ms=3_000, fetch_max_wait_ms=100)
    with caplog.at_level(logging.WARNING, "odradek.client"), pytest.raises(RequestTimedOut):
        PartitionReader(config, TopicPartition("t", 0)).fetch(0)
    said = [record.getMessage() for record in caplog.records if "no answer to" in record.getMessage()]
    assert said == [f"{silent.bootstrap}: no answer to fetch for 0.3 s; waiting up to 30 s"], "once in a minute"


# --- Ctrl-C -----------------------------------------------------------------------------------------------------------


def test_an_interrupted_file_is_said_to_be_missing(
    bootstrap: str, filled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(PartitionReader, "read_batches", interrupted)
    output = tmp_path / "r.csv"
    output.write_text("before")
    assert run(["consume", filled, "--output", str(output), "-b", bootstrap]) == 130
    assert capsys.readouterr().err == f"Interrupted: {output} is not written.\n"
    assert output.read_text() == "before"


def end_of(admin: Admin) -> int:
    place = TopicPartition("t", 0)
    return admin.list_offsets({place: LATEST})[place].offset


def test_produce_ends_soon_after_ctrl_c_if_the_broker_is_frozen(own_broker: object, tmp_path: Path) -> None:
    assert produce.SEND_S + produce.LAST_S <= 4, "a second is left of five"
    broker = own_broker()
    with Admin(broker.bootstrap) as admin:
        admin.create_topics([NewTopic("t", 1, 1)])
    line = [sys.executable, "-m", "odradek.cli.main", "produce", "t", "-b", broker.bootstrap]
    pipe = subprocess.PIPE
    with subprocess.Popen(line, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdin is not None
        process.stdin.write(b"one\n")
        process.stdin.flush()
        with Admin(broker.bootstrap) as admin:
            eventually(lambda: end_of(admin) == 1, within_s=60)
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            process.stdin.write(b"two\n")
            process.stdin.flush()
            time.sleep(0.5)
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=60)
        finally:
            os.kill(broker.pid, signal.SIGCONT)
    assert process.returncode == 130
    # The request is unanswered for 0.5 s before the interrupt and 2.5 s after it: the note of 3 s may come, or not.
    may_come = re.compile(r"Sending to t: |.*no answer to produce for 3 s")
    lines = [line for line in said.decode().splitlines() if not may_come.match(line)]
    assert len(lines) == 2, lines
    assert lines[0].startswith("Interrupted: waiting for the acknowledgements")
    assert re.fullmatch(
        r"odradek: interrupted: 2 records were sent to t, and not all acknowledged: .* within 2\.5 s; the last of them "
        r"may be missing",
        lines[1],
    )


# --- terminals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["lines", "json", "csv"])
def test_a_terminal_as_the_output_gets_no_control_characters(form: str, bootstrap: str, topic: str) -> None:
    """``--output /dev/tty``: standard output is a pipe here."""
    with Producer(bootstrap) as producer:
        producer.send(topic, CONTROLS)
    ours, theirs = pty.openpty()
    try:
        line = ["consume", topic, "--output", os.ttyname(theirs), "--format", form, "-b", bootstrap]
        assert run(line) == 0
        shown = b""
        while b"red" not in shown:  # a write arrives in pieces
            shown += os.read(ours, 65_536)
        assert not set(shown) & (set(range(32)) - {10, 13}), shown
        assert run(["consume", topic, "--output", os.ttyname(theirs), "--format", "parquet", "-b", bootstrap]) == 2
    finally:
        os.close(ours)
        os.close(theirs)


@pytest.mark.parametrize(
    ("command", "module", "says"),
    [
        ("produce", "typer", "odradek: interrupted before the command began: nothing was sent\n"),
        ("consume", "typer", "odradek: interrupted before the command began: nothing was done\n"),
        (
            "produce",
            "odradek.client.producer.engine",
            "odradek: interrupted before the first record: nothing was sent\n",
        ),
        ("produce", "odradek.cli.produce.produce", "odradek: interrupted before the first record: nothing was sent\n"),
        ("produce", "odradek.client.producer", "odradek: interrupted before the first record: nothing was sent\n"),
    ],
)
def test_an_interrupt_during_the_imports_gets_a_line(command: str, module: str, says: str) -> None:
    program = (
        "import sys\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == '{module}':\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "from odradek.__main__ import main\n"
        f"sys.argv = ['odradek', '{command}', 't', '-b', '127.0.0.1:1']\n"
        "main()"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (130, "")
    assert ended.stderr == says


def test_an_interrupt_while_the_loop_starts_leaves_no_work_behind() -> None:
    def interrupted() -> asyncio.AbstractEventLoop:
        raise KeyboardInterrupt

    async def nothing() -> None:
        pass

    work = nothing()
    with pytest.raises(KeyboardInterrupt):
        loop.start(work, interrupted)
    assert inspect.getcoroutinestate(work) == inspect.CORO_CLOSED
