"""The programs of Java among the recorded clients: what they print is kept, and the end of one is a failure."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest
from support import recorded_java_clients
from support.brokers import eventually
from support.recorded_clients import RecordedHistory
from support.recorded_java_clients import POSITION_RACE, JavaProgram, ProgramEnded, VerifiableConsumer


class OtherProgram(JavaProgram):
    """A program of Python in place of one of Java."""

    source = ""

    def command(self) -> list[str]:
        return [sys.executable, "-c", self.source]

    def work(self) -> None:
        self.events = list(self.run_tool("Tool"))


def program(source: str, folder: Path) -> OtherProgram:
    OtherProgram.source, OtherProgram.folder = source, folder
    return OtherProgram(RecordedHistory(), "", "t", 1)


def test_a_program_that_ends_by_itself_is_a_failure_with_its_log(tmp_path: Path) -> None:
    made = program(
        "import sys; print('{\"name\": 1}'); print('a stack'); print('fatal error', file=sys.stderr)", tmp_path
    )
    made.run()
    assert isinstance(made.failure, ProgramEnded)
    head, *lines = str(made.failure).splitlines()
    assert head == f"Tool has ended by itself, its log is {tmp_path / f'{made.name}.log'}"
    assert sorted(lines) == ["a stack", "fatal error"]


def test_a_program_without_lines_ends_when_the_client_ends(tmp_path: Path) -> None:
    made = program("import time; time.sleep(1000)", tmp_path)
    made.start()
    made.ended.set()
    made.join(60)
    assert (made.is_alive(), made.failure, made.events) == (False, None, [])


def test_the_log_keeps_the_last_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded_java_clients, "LOG_BYTES", 2_000)
    made = program("import sys\nfor one in range(10_000): print(f'line {one}', file=sys.stderr)", tmp_path)
    made.run()
    sizes = {one.name: one.stat().st_size for one in tmp_path.iterdir()}
    assert set(sizes) == {f"{made.name}.log", f"{made.name}.log.1"}
    assert all(0 < size <= 2_000 for size in sizes.values())
    assert str(made.failure).endswith("line 9999")


def test_the_stacks_of_a_program_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Java prints them to its standard output, between the events."""
    monkeypatch.setattr(recorded_java_clients, "DUMP_S", 0.5)
    source = "import signal, time\nsignal.signal(signal.SIGQUIT, lambda *_: print('Full thread dump', flush=True))\n"
    source += "print('{}', flush=True)\nwhile True: time.sleep(0.01)"
    made = program(source, tmp_path)
    begun = threading.Event()

    def work() -> None:
        for _ in made.run_tool("Tool"):
            begun.set()

    monkeypatch.setattr(made, "work", work)
    made.start()
    assert begun.wait(60)
    (line,) = made.evidence()
    assert os.fspath(tmp_path / f"{made.name}.log") in line
    made.ended.set()
    made.join(60)
    assert (tmp_path / f"{made.name}.log").read_text() == "Full thread dump\n"


class OtherConsumer(VerifiableConsumer):
    """Its program fails once, and goes on when it is started again."""

    error = ""

    def command(self) -> list[str]:
        mark = self.folder / "mark"
        source = f"import pathlib, sys, time\nmark = pathlib.Path({str(mark)!r})\nif mark.exists(): time.sleep(1000)\n"
        return [sys.executable, "-c", f"{source}mark.touch(); sys.exit('java.lang.{self.error}')"]


def test_a_consumer_is_started_again_only_after_the_race_of_its_own_threads(tmp_path: Path) -> None:
    OtherConsumer.folder, OtherConsumer.error = tmp_path, POSITION_RACE
    made = OtherConsumer(RecordedHistory(), "", "t", 1, group="g", protocol="consumer")
    made.start()
    eventually(lambda: made.errors == {POSITION_RACE[:80]: 1})
    made.ended.set()
    made.join(60)
    assert (made.is_alive(), made.failure) == (False, None)

    (tmp_path / "mark").unlink()
    OtherConsumer.error = "IllegalStateException: another one"
    made = OtherConsumer(RecordedHistory(), "", "t", 1, group="g", protocol="consumer")
    made.run()
    assert isinstance(made.failure, ProgramEnded)
    assert "another one" in str(made.failure)
