"""A broker as a child process, for as long as one command runs, gone with it however it ends."""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import threading
import time
from pathlib import Path

from odradek.cli.terminal import EXIT_BAD_INPUT, EXIT_FAILED, CommandError

_READY_S = 60.0
_STOP_S = 15.0
# How long the broker of a run that was killed a moment ago may take to let go of its directory.
_PREDECESSOR_S = 6.0
_RETRY_S = 0.2
_HELD = "is held by another broker"


class BrokerProcess:
    """``odradek serve`` on a free port of this machine; its log goes to ``log``.

    It ends when ``stop`` is called or when this process is gone, killed or not.
    """

    def __init__(self, data_dir: Path, log: Path) -> None:
        self._data_dir = data_dir
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> str:
        """Starts it and returns its ``HOST:PORT`` once it accepts requests.

        Raises CommandError, with the broker's own line: exit code 2 where the directory is held or unusable.
        """
        give_up = time.monotonic() + _PREDECESSOR_S
        while True:
            address = self._start_once()
            if address is not None:
                return address
            code, line = self._what_it_said()
            if code != EXIT_BAD_INPUT:
                raise CommandError(f"the broker did not start: {line} (see {self._log})", EXIT_FAILED)
            if _HELD not in line or time.monotonic() > give_up:
                raise CommandError(line)
            threading.Event().wait(_RETRY_S)

    def stop(self) -> None:
        """Asks it to stop cleanly, and insists after a while. Does nothing when it does not run."""
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _start_once(self) -> str | None:
        command = [sys.executable, "-m", "odradek.cli.main", "serve", "--exit-with-parent"]
        command += ["--data-dir", str(self._data_dir), "--listen", "127.0.0.1:0"]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for us; we stop the broker when everything else is done
            )
        return _ready_address(self._process)

    def _what_it_said(self) -> tuple[int, str]:
        """Exit code and last line of a broker that did not get ready."""
        assert self._process is not None
        try:
            code = self._process.wait(_RETRY_S)
        except subprocess.TimeoutExpired:  # it neither got ready nor ended
            self.stop()
            return EXIT_FAILED, f"not ready after {_READY_S:.0f} s"
        lines = self._log.read_text(errors="replace").strip().splitlines() or [f"it ended with code {code}"]
        return code, lines[-1].removeprefix("odradek: ")


def _ready_address(process: subprocess.Popen[bytes]) -> str | None:
    """Waits for ``ready HOST:PORT``; None when the process ends, or stays silent too long, before saying it."""
    assert process.stdout is not None
    handle = process.stdout.fileno()
    give_up = time.monotonic() + _READY_S
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
    return None
