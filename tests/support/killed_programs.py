"""Programs that a test reads line by line and kills, and the commits of such a program."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import NamedTuple

from odradek.client import Admin
from odradek.client.admin import offsets_topic
from odradek.codecs import offsets_topic as records
from support.brokers import eventually


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
        return [(topic, int(partition), int(offset)) for topic, partition, offset, *_ in self.starting("processed ")]

    @property
    def processed_at_ms(self) -> list[int]:
        """The time in ms since 1970 in each line ``processed``. The program must print it after the offset."""
        return [int(at_ms) for _, _, _, at_ms in self.starting("processed ")]

    def say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def end_input(self) -> None:
        """Closes the program's standard input, which asks some programs to end."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def wait(self) -> int:
        """Waits until the program ends, and returns its exit code."""
        code = self._process.wait(timeout=60)
        self._reader.join(timeout=60)
        return code

    def kill(self) -> None:
        """kill -9. Afterwards ``lines`` has all complete lines that the program printed."""
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


def kill_at_8_seconds(bootstrap: str, runs: Mapping[int, tuple[str, KilledProgram]]) -> dict[int, int]:
    """Kills two programs, and checks which records their next runs repeat. Returns the last committed offsets.

    The programs commit automatically every 5,000 ms and every 1,000 ms. ``runs`` and the result have these
    intervals as keys. The program with 5,000 ms is killed 3 s after its first commit, the other one about halfway
    between two of its commits. Both programs read one partition from its start. Before they make their consumer, they
    print ``started`` with the time. Then they print the time of each record. The checks use these times, so the
    machine's speed does not change their result.
    """

    def commits(interval: int) -> list[Commit]:
        return [row for row in commits_of(bootstrap, runs[interval][0]) if row.offset]

    (slow_group, slow), (_, quick) = runs[5_000], runs[1_000]
    at_5_s = eventually(lambda: commits(5_000), within_s=60)[0]
    eventually(lambda: slow.processed_at_ms[-1] >= at_5_s.at_ms + 3_000)
    slow.kill()
    # The program with the short interval is killed halfway between two of its commits.
    eventually(lambda: 300 <= time.time() * 1000 - commits(1_000)[-1].at_ms <= 700)
    quick.kill()

    assert {row.offset for row in commits(5_000)} == {at_5_s.offset}, f"{slow_group} commits once"
    ((started_ms,),) = slow.starting("started")
    assert at_5_s.at_ms - int(started_ms) >= 4_900, "the first commit comes too early"
    assert at_5_s.at_ms - slow.processed_at_ms[0] < 7_000, "the first commit comes too late"
    last = {interval: commits(interval)[-1].offset for interval in runs}
    again_ms = {}
    for interval, (_, victim) in runs.items():
        assert [offset for _, _, offset in victim.processed] == list(range(len(victim.processed)))
        again = victim.processed_at_ms[last[interval] :]
        assert again, "no record is repeated"
        again_ms[interval] = again[-1] - again[0]
    assert 2_000 < again_ms[5_000] < 5_000, again_ms
    assert again_ms[1_000] < 2_000, again_ms
    return last
