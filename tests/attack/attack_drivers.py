"""Processes that run ``odradek pipeline``: they are stopped, continued and killed, alone or with their children."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.jvm import spark_java_options
from support.processes import descendants, kill_tree

CHILD = Path(__file__).with_name("attack_child.py")
RUN_S = 900.0
CONF = {
    "spark.python.authenticate.socketTimeout": "600s",  # a worker may be stopped for long
    "spark.ui.enabled": "false",
    "spark.sql.streaming.pollingDelay": "50ms",
    "spark.sql.shuffle.partitions": "2",
}


@dataclass(frozen=True)
class CommandEnd:
    """The end of a command. ``code``: the exit code; negative if a signal has ended the process."""

    code: int
    out: str = ""
    err: str = ""

    @property
    def is_done(self) -> bool:
        return self.code == 0

    @property
    def was_ended(self) -> bool:
        """Whether a signal of the attacker has ended it."""
        return self.code in (129, 130, 143) or self.code < 0

    @property
    def error(self) -> str:
        """The lines of the program's errors, as one text."""
        return "\n".join(line for line in self.err.splitlines() if line.startswith("odradek: "))

    @property
    def result(self) -> dict[str, Any]:
        """The JSON of ``--json``."""
        found: dict[str, Any] = json.loads(self.out.splitlines()[-1])
        return found


class AttackedDriver:
    """A process with Spark that runs one command at a time. It starts again after its end."""

    def __init__(self, name: str, place: Path, *, is_plain: bool = False) -> None:
        self.name, self._place, self._is_plain = name, place, is_plain
        self._process: subprocess.Popen[str] | None = None
        self._said: queue.Queue[str | None] = queue.Queue()
        self._stopped: list[int] = []
        self.is_running = False
        """Whether a command was begun whose end is not read yet."""

    def start(self) -> None:
        """Starts the process, and waits until Spark runs."""
        self._place.mkdir(parents=True, exist_ok=True)
        environment = os.environ | {
            "SPARK_SUBMIT_OPTS": spark_java_options(), "XDG_DATA_HOME": str(self._place / "data"),
        }  # fmt: skip
        engine = "plain" if self._is_plain else json.dumps(CONF)
        with (self._place / "log").open("a") as log:
            process = subprocess.Popen(
                [sys.executable, str(CHILD), engine], env=environment, cwd=self._place,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
        said: queue.Queue[str | None] = queue.Queue()

        def read() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                said.put(line)
            said.put(None)

        threading.Thread(target=read, daemon=True).start()
        self._process, self._said = process, said
        first = said.get(timeout=RUN_S)
        assert first is not None, (self._place / "log").read_text()[-3000:]

    def begin(self, command: Sequence[str], *, locks: bool = True, halt: Mapping[str, Any] | None = None) -> None:
        """Begins a command. ``halt``: as ``attack_child`` describes."""
        assert not self.is_running
        if self._process is None:
            self.start()
        assert self._process is not None
        assert self._process.stdin is not None
        line = json.dumps({"command": list(command), "locks": locks, "halt": halt})
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:  # the process has ended since
            self.kill()
            self.begin(command, locks=locks, halt=halt)
            return
        self.is_running = True

    @property
    def is_stopped(self) -> bool:
        return bool(self._stopped)

    def end(self, timeout_s: float = RUN_S) -> CommandEnd | None:
        """Returns the end of the command; None if it has not ended within the time, or if it has halted (then
        ``is_stopped``, or the process is killed and its end is returned)."""
        assert self.is_running
        try:
            line = self._said.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if line is None:
            return self._ended()
        found = json.loads(line)
        if "halted" in found:
            if self._is_stopped_by(found["signal"]):
                assert self._process is not None
                self._stopped = [self._process.pid]
                return None
            return self.end(timeout_s)
        self.is_running = False
        if found["code"] in (129, 143):
            self.kill()
        return CommandEnd(found["code"], found["out"], found["err"])

    def _is_stopped_by(self, signal_name: str) -> bool:
        """Waits for the signal that the process sends itself after its line; returns whether it is stopped then."""
        assert self._process is not None
        while self._process.poll() is None and signal_name == "STOP":
            if _state(self._process.pid) == "T":
                return True
            time.sleep(0.02)
        return False

    def _ended(self) -> CommandEnd:
        assert self._process is not None
        code = self._process.wait(30)
        tail = "" if code < 0 else (self._place / "log").read_text()[-3000:]
        self.kill()
        return CommandEnd(code, err=tail)

    def stop(self, *, alone: bool = False) -> None:
        """SIGSTOP for the process and, unless ``alone``, for its Java and its workers."""
        assert self._process is not None
        self._stopped = [self._process.pid, *([] if alone else descendants(self._process.pid))]
        for pid in self._stopped:
            _signal(pid, signal.SIGSTOP)

    def go_on(self) -> None:
        for pid in reversed(self._stopped):
            _signal(pid, signal.SIGCONT)
        self._stopped = []

    def terminate(self, *, alone: bool = True) -> None:
        """SIGTERM for the process; unless ``alone`` also for its children, as systemd and ``timeout`` send it."""
        assert self._process is not None
        for pid in [self._process.pid, *([] if alone else descendants(self._process.pid))]:
            _signal(pid, signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL for the process and all its children."""
        process, self._process = self._process, None
        self.is_running, self._stopped = False, []
        if process is not None:
            kill_tree(process.pid)
            _signal(process.pid, signal.SIGKILL)
            process.wait(30)


def environment_in(place: Path) -> dict[str, str]:
    """The environment of a process of the program. Spark starts many Python processes, which share their byte code."""
    found = os.environ | {
        "SPARK_SUBMIT_OPTS": spark_java_options(), "XDG_DATA_HOME": str(place / "data"),
        "PYTHONPYCACHEPREFIX": str(Path(tempfile.gettempdir()) / "odradek-attack-bytecode"),
    }  # fmt: skip
    found.pop("PYTHONDONTWRITEBYTECODE", None)
    return found


def cold(command: Sequence[str], place: Path) -> CommandEnd:
    """Runs a command in a process of its own, as a user does."""
    environment = environment_in(place)
    done = subprocess.run(
        [sys.executable, "-m", "odradek", *command], capture_output=True, text=True, timeout=RUN_S, check=False,
        env=environment, cwd=place,
    )  # fmt: skip
    return CommandEnd(done.returncode, done.stdout, done.stderr)


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
