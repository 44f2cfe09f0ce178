"""Programs that a test reads line by line and kills, and the commits of such a program."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import NamedTuple

from odradek.client import Admin
from odradek.client.admin import offsets_topic
from odradek.core import records


class KilledProgram:
    """A program in a separate process, which a test kills. ``lines`` are the lines that it has printed so far."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.endswith("\n"):  # an incomplete line at the kill is dropped
                self.lines.append(line.rstrip("\n"))

    def starting(self, word: str) -> list[list[str]]:
        """The other words of each line that begins with ``word``."""
        return [line.split()[1:] for line in list(self.lines) if line.startswith(word)]

    @property
    def processed(self) -> list[tuple[str, int, int]]:
        """(topic, partition, offset) of each line ``processed``."""
        return [(topic, int(partition), int(offset)) for topic, partition, offset in self.starting("processed ")]

    def say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def end_input(self) -> None:
        """Closes its standard input, which asks some programs to end."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def wait(self) -> int:
        """Waits until it ends, and returns its exit code."""
        code = self._process.wait(timeout=60)
        self._reader.join(timeout=60)
        return code

    def kill(self) -> None:
        """kill -9. Afterwards ``lines`` has all lines that it printed."""
        self._process.kill()
        self._process.wait()
        self._reader.join(timeout=60)

    def __enter__(self) -> KilledProgram:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.kill()


class Commit(NamedTuple):
    """One record of ``__consumer_offsets``."""

    topic: str
    partition: int
    offset: int
    at_ms: int


def commits_of(bootstrap: str, group: str) -> list[Commit]:
    """All commits of a group, in the order of the log."""
    with Admin(bootstrap) as admin:
        found = [records.decode(entry.key, entry.value) for entry in offsets_topic.entries(admin, group)]
    return [
        Commit(one.key.topic, one.key.partition, one.value.offset, one.value.commit_timestamp_ms)
        for one in found
        if isinstance(one, records.OffsetCommitRecord) and one.value is not None
    ]


def repeated(processed: Sequence[tuple[str, int, int]], committed: dict[tuple[str, int], int]) -> int:
    """The number of processed records that the next run reads again."""
    return sum(offset >= committed.get((topic, partition), 0) for topic, partition, offset in set(processed))
