"""franz-go as recorded clients: the program prints each of its operations as a line of the history."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from support.recorded_clients import RecordedClient, RecordedMember, RecordedProducer

SOURCES = Path(__file__).parents[1] / "interop" / "franz_history"


class FranzProgram(RecordedClient):
    """A process whose output a thread reads. It works until its standard input ends."""

    program: ClassVar[Path]
    role: ClassVar[str]

    def words(self) -> list[str]:
        return [str(self.program), self.role, self.bootstrap, self.topic, str(self.partitions), self.name]

    def work(self) -> None:
        with subprocess.Popen(
            self.words(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            self._process = process
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stderr is not None
            errors: list[str] = []
            threading.Thread(target=errors.extend, args=(process.stderr,), daemon=True).start()
            threading.Thread(target=self._end_with, args=(process,), daemon=True).start()
            for line in process.stdout:
                self.take(json.loads(line))
            process.wait()
            assert self.ended.is_set(), f"franz-go ended: {''.join(errors)[-2000:]}"

    @contextmanager
    def halted(self) -> Iterator[None]:
        """The program stands still within."""
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def _end_with(self, process: subprocess.Popen[str]) -> None:
        self.ended.wait()
        if process.stdin is not None:
            process.stdin.close()

    def take(self, row: dict[str, Any]) -> None:
        """One line of the program."""
        if "error" in row:
            self.note(row["error"])
            return
        self.done += row["outcome"] == "done" and row["op"] != "revoke"  # which is no answer to a request
        self.history.add(row.pop("op"), row.pop("client"), row.pop("start"), **row)


class FranzProducer(FranzProgram, RecordedProducer):
    role = "producer"

    def take(self, row: dict[str, Any]) -> None:
        self.sent += row.get("op") == "send"
        super().take(row)


class FranzTransactions(FranzProducer):
    """Three records in each transaction; each third transaction is aborted."""

    role = "transactor"


class FranzMember(FranzProgram, RecordedMember):
    """A member that commits after each poll."""

    role = "member"

    def words(self) -> list[str]:
        return [*super().words(), self.group, self.protocol]
