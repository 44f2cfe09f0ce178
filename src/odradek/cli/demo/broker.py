"""Brokers as a child process of one command. They end with the command, even if the command is killed."""

from __future__ import annotations

import os
import re
import selectors
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from odradek.cli.terminal import EXIT_BAD_INPUT, EXIT_FAILED, CommandError
from odradek.wire import frames
from odradek.wire.api_keys import API_VERSIONS

# A broker that still responds after this number of tries and ``Waits.alive_s`` is not about to stop.
ALIVE_TRIES = 4
_RETRY_S = 0.2
_LONGEST_PAUSE_S = 1.0
LOG_KEPT_BYTES = 1 << 20
_SHORT_SESSIONS = ("--config", "broker.session.timeout.ms=3000", "--config", "broker.heartbeat.interval.ms=500")
"""With Kafka's nine seconds, a partition would wait for long until another broker leads it."""
_HELD = "is held by another broker"
_HOLDER = re.compile(r"\(process \d+ at (\S+):(\d+)\)")


@dataclass(frozen=True)
class Waits:
    """The longest waits for a broker, in seconds."""

    ready_s: float = 60.0
    stop_s: float = 15.0
    predecessor_s: float = 30.0
    """A broker whose run was killed has given up the directory after this time, even on a busy machine."""
    alive_s: float = 2.0
    answer_s: float = 1.0


class DemoBroker:
    """``odradek serve`` on free ports of this machine; its log is written to ``log``.

    ``brokers``: more than one are a cluster, which starts a broker again that has died. All end when ``stop`` is
    called, or when this process ends, even by a kill.
    """

    def __init__(self, data_dir: Path, log: Path, waits: Waits = Waits(), *, brokers: int = 1) -> None:
        self._data_dir = data_dir
        self._log = log
        self._waits = waits
        self._brokers = brokers
        self._log_start = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The id of the broker's process; None before the start and after the stop."""
        return None if self._process is None else self._process.pid

    def start(self, say: Callable[[str], None] = lambda what: None) -> str:
        """Starts the broker and returns its ``HOST:PORT``, or those of all, when it accepts requests.

        ``say`` is called before each wait. If another broker has the directory, waits until that broker has stopped, up
        to 30 seconds. If that broker still responds to requests, waits only a few seconds. Raises CommandError with the
        broker's own line; exit code 2 if the directory is in use or unusable.
        """
        give_up = time.monotonic() + self._waits.predecessor_s
        pause_s = _RETRY_S
        alive_since, alive_tries = 0.0, 0
        while True:
            address = self._start_once()
            if address is not None:
                self._shorten_log()
                return address
            code, line = self._exit_report()
            if code != EXIT_BAD_INPUT:
                raise CommandError(f"the broker did not start: {line} (see {self._log})", EXIT_FAILED)
            if _HELD not in line or time.monotonic() > give_up:
                raise CommandError(line)
            if _owner_answers(line, self._waits.answer_s):
                alive_since = alive_since if alive_tries else time.monotonic()
                alive_tries += 1
                if alive_tries >= ALIVE_TRIES and time.monotonic() - alive_since >= self._waits.alive_s:
                    raise CommandError(line)
            else:
                alive_tries = 0
            say(f"waiting: {line}")
            threading.Event().wait(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def stop(self) -> None:
        """Asks the broker to stop cleanly, and kills it after 15 seconds. Does nothing if it does not run."""
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        process.terminate()
        try:
            process.wait(self._waits.stop_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _start_once(self) -> str | None:
        command = [sys.executable, "-m", "odradek.cli.main", "serve", "--exit-with-parent"]
        command += ["--data-dir", str(self._data_dir), "--listen", "127.0.0.1:0"]
        if self._brokers > 1:
            command += ["--brokers", str(self._brokers), "--restart", *_SHORT_SESSIONS]
        with self._open_log() as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C is only for this process, which stops the broker at the end
            )
        try:
            return _ready_address(self._process, self._waits.ready_s)
        except TimeoutError as error:
            self.stop()
            raise CommandError(f"the broker did not start: {error} (see {self._log})", EXIT_FAILED) from error

    def _open_log(self) -> BinaryIO:
        """Opens the log to append, because another broker may still write to it."""
        try:
            return self._log.open("ab")
        except OSError as error:
            raise CommandError(f"{self._log} cannot be written: {error.strerror}") from error

    def _shorten_log(self) -> None:
        """Empties a long log of former brokers. Only our broker writes to it now, because it has the directory."""
        if self._log_start > LOG_KEPT_BYTES:
            os.truncate(self._log, 0)

    def _exit_report(self) -> tuple[int, str]:
        """Returns the exit code and the last line of a broker that has closed its output without getting ready."""
        assert self._process is not None
        try:
            code = self._process.wait(
                self._waits.stop_s
            )  # on a busy machine the process ends some time after its output
        except subprocess.TimeoutExpired:
            self.stop()
            return EXIT_FAILED, f"it closed its output and did not end within {self._waits.stop_s:.0f} s"
        output = self._log.read_bytes()[self._log_start :].decode(errors="replace").strip().splitlines()
        # Another broker may have written lines to the same log.
        lines = [line for line in output if line.startswith("odradek")] or output or [f"it ended with code {code}"]
        return code, lines[-1].removeprefix("odradek: ")


def _owner_answers(refusal: str, answer_s: float) -> bool:
    """Returns whether the broker that a refusal names responds to requests. A stopping or killed broker does not."""
    named = _HOLDER.search(refusal)
    if named is None:
        return False
    question = {"client_software_name": "odradek", "client_software_version": "demo"}
    try:
        with socket.create_connection((named[1].strip("[]"), int(named[2])), timeout=answer_s) as asked:
            asked.sendall(frames.encode_request(API_VERSIONS, 3, 1, "odradek demo", question))
            return len(asked.recv(4)) == 4
    except (OSError, OverflowError):
        return False


def _ready_address(process: subprocess.Popen[bytes], ready_s: float) -> str | None:
    """Waits for ``ready HOST:PORT``; returns None if the output ends before that. Raises TimeoutError after
    ``ready_s`` seconds."""
    assert process.stdout is not None
    handle = process.stdout.fileno()
    give_up = time.monotonic() + ready_s
    text = b""
    with selectors.DefaultSelector() as selector:
        selector.register(handle, selectors.EVENT_READ)
        while selector.select(max(0.0, give_up - time.monotonic())):
            chunk = os.read(handle, 4096)
            if not chunk:
                return None
            text += chunk
            for line in text.decode(errors="replace").splitlines(keepends=True):
                if line.startswith("ready ") and line.endswith("\n"):
                    return line.split()[1]
    raise TimeoutError(f"not ready after {ready_s:.0f} s")
