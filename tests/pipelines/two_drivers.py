"""Rounds of two drivers of one pipeline: pauses, kills, old copies of the checkpoint, foreign commits in between."""

from __future__ import annotations

import json
import os
import queue
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from driver_child import said_by
from ingest_runs import RecordId, committed, delta, duckdb_count, ends, expected, parquet, record_ids
from support.processes import descendants, kill_tree
from support.publish import publish
from transaction_runs import committed_records

from odradek.client.admin import Admin
from odradek.core.ids import TopicPartition

RUN_S = 600
CHILD = Path(__file__).with_name("driver_child.py")


class Driver:
    """A driver process. It starts at the first run and is used for many."""

    def __init__(self, place: Path, conf: Mapping[str, str] | None = None) -> None:
        self._place, self._conf = place, dict(conf or {})
        self._process: subprocess.Popen[str] | None = None
        self._said: queue.Queue[str | None] = queue.Queue()
        self._paused: list[int] = []

    def _start(self) -> subprocess.Popen[str]:
        self._place.mkdir(parents=True, exist_ok=True)
        log = (self._place / "log").open("a")
        self._said = queue.Queue()
        pipe = subprocess.PIPE
        command = [sys.executable, str(CHILD), json.dumps(self._conf)]
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log, text=True)
        said = self._said

        def read() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                said.put(line)
            said.put(None)

        threading.Thread(target=read, daemon=True).start()
        assert said.get(timeout=RUN_S) == "ready\n"
        return process

    def begin(self, given: Mapping[str, Any]) -> None:
        if self._process is None:
            self._process = self._start()
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(given) + "\n")
        self._process.stdin.flush()

    def result(self) -> dict[str, Any]:
        line = self._said.get(timeout=RUN_S)
        assert line is not None, (self._place / "log").read_text()[-3000:]
        found: dict[str, Any] = json.loads(line)
        return found

    def run(self, given: Mapping[str, Any]) -> dict[str, Any]:
        self.begin(given)
        return self.result()

    def ids(self, *files: str) -> Counter[RecordId]:
        """The number of occurrences of each record in Parquet files or folders, as Spark reads them."""
        return Counter((topic, partition, offset) for topic, partition, offset in self.run({"files": files})["ids"])

    def begin_and_halt(self, given: Mapping[str, Any], operation: str, when: str, sent: str) -> bool:
        """Begins a run that stops (STOP) or ends (KILL) this driver before or after an operation of the commit machine,
        or a call of a producer. Returns whether the run has come there; otherwise it is done."""
        self.begin({**given, "halt": {"operation": operation, "when": when, "signal": sent}})
        is_halted = "halted" in self.result()
        if is_halted and sent == "KILL":
            self.kill()
        elif is_halted:
            assert self._process is not None
            self._paused = [self._process.pid]
        return is_halted

    @property
    def is_running(self) -> bool:
        return self._said.empty()

    def pause(self) -> None:
        """Stops the driver, its Java and its workers, as a suspended machine does."""
        assert self._process is not None
        self._paused = [self._process.pid, *descendants(self._process.pid)]
        for pid in self._paused:
            _signal(pid, signal.SIGSTOP)

    def go_on(self) -> None:
        for pid in reversed(self._paused):
            _signal(pid, signal.SIGCONT)
        self._paused = []

    def kill(self) -> None:
        if self._process is not None:
            kill_tree(self._process.pid)
            _signal(self._process.pid, signal.SIGKILL)
            self._process.wait(30)
            self._process, self._paused = None, []


class SharedDriver:
    """A driver in the process of the test, with its Spark session. It is never paused or killed."""

    def __init__(self, spark: Any) -> None:
        self._spark = spark

    def run(self, given: Mapping[str, Any]) -> dict[str, Any]:
        return said_by(self._spark, dict(given))

    def ids(self, *files: str) -> Counter[RecordId]:
        return Counter((topic, partition, offset) for topic, partition, offset in self.run({"files": files})["ids"])


Pair = tuple[Driver, Driver | SharedDriver]


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


class DriverRounds(ABC):
    """Rounds of one job. ``given``: the job and its keywords, for every run."""

    checkpoint: Path | None = None

    def __init__(self, place: Path, admin: Admin, drivers: Pair, given: Mapping[str, Any]) -> None:
        self.place, self.admin = place, admin
        self.first, self.second = drivers
        self.given = dict(given)
        self.topic = str(given["topics"])
        self.history: list[str] = []
        self._highest: dict[TopicPartition, int] = {}
        self._seconds = 6.0

    def say(self, what: str) -> None:
        self.history.append(what)

    @abstractmethod
    def check(self, *, is_complete: bool) -> None:
        """Checks the output, and the group if there is one."""

    def publish(self, rng: random.Random) -> None:
        for partition in range(2):
            numbers = range(rng.randrange(20, 120))
            is_avro = self.given.get("value_format") == "avro"
            values = [bytes([2 * (number % 64)]) if is_avro else b'{"id": %d}' % number for number in numbers]
            publish(self.given["bootstrap_servers"], self.topic, values, partition=partition)

    def check_group(self) -> dict[TopicPartition, int]:
        """Returns the group's offsets. They are nowhere lower than at the last call."""
        commits = committed(self.admin, self.given["group"])
        for tp, offset in commits.items():
            assert offset >= self._highest.get(tp, 0), (f"the group went back: {tp} {offset}", self.history)
            self._highest[tp] = offset
        return commits

    def a_round(self, rng: random.Random, foreign: Callable[[], None] | None = None) -> str:
        """Runs one round: the first driver is paused or killed at a random moment, the second runs to the end, and the
        first goes on. Returns what the last run said; the empty text if it completed the output."""
        self.publish(rng)
        copy = self._copy(rng)
        self.first.begin(self.given)
        time.sleep(rng.uniform(0, self._seconds))
        is_killed = rng.random() < 0.35
        self.say(f"first {'killed' if is_killed else 'paused'}, {'running' if self.first.is_running else 'done'}")
        self.first.kill() if is_killed else self.first.pause()
        try:
            if foreign is not None and rng.random() < 0.5:
                foreign()
                self.say("foreign commit")
            begun = time.monotonic()
            said = self.second.run(self.given)
            self.say(f"second: {said}")
            self._seconds = max(1.5, min(20.0, time.monotonic() - begun))
            if "error" not in said:
                self.check(is_complete=False)
            if rng.random() < 0.3:
                self.more(rng)
        finally:
            self.first.go_on()
        if not is_killed:
            self.say(f"first: {self.first.result()}")
        self.check(is_complete=False)
        if copy is not None and rng.random() < 0.7:
            self._put_back(copy)
        last = self.second.run(self.given)
        self.say(f"last: {last}")
        self.check(is_complete="error" not in last)
        return str(last.get("error", ""))

    def more(self, rng: random.Random) -> None:
        """Publishes records between two runs of a round."""
        self.publish(rng)

    def _copy(self, rng: random.Random) -> Path | None:
        if self.checkpoint is None or not self.checkpoint.exists() or rng.random() < 0.7:
            return None
        copy = self.place / "old-checkpoint"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.checkpoint, copy)
        self.say("the checkpoint is copied")
        return copy

    def _put_back(self, copy: Path) -> None:
        assert self.checkpoint is not None
        shutil.rmtree(self.checkpoint)
        shutil.copytree(copy, self.checkpoint)
        self.say("the old checkpoint is put back")


class TableRounds(DriverRounds):
    """Rounds of ``ingest`` on one table in a folder of this machine."""

    def __init__(self, place: Path, admin: Admin, drivers: Pair, given: Mapping[str, Any]) -> None:
        super().__init__(place, admin, drivers, given)
        self.output = Path(given["output"])
        self.checkpoint = self.output / "_odradek" / "checkpoint"

    def table(self) -> pa.Table:
        return delta(self.output) if self.given.get("table_format") == "delta" else parquet(self.output)

    def check(self, *, is_complete: bool) -> None:
        """Checks the table against the topic and the group, as pyarrow or deltalake, DuckDB and, at the end of a round,
        Spark read it."""
        commits = self.check_group()
        if not (self.output / "_odradek" / "table.json").exists():
            assert not commits, self.history
            return
        found = self.found_once()
        below = {(tp.topic, tp.partition, at) for tp, offset in commits.items() for at in range(offset)}
        assert below <= set(found), (sorted(below - set(found))[:4], self.history)
        if is_complete:
            assert found == expected(self.admin, self.topic), self.history
            assert commits == ends(self.admin, self.topic), self.history
            assert self.second.ids(*self._files()) == found, self.history

    def found_once(self) -> Counter[RecordId]:
        """Returns the records of the table. Each is there once, also for DuckDB."""
        found = record_ids(self.table()) if any(self.output.rglob("*.parquet")) else Counter()
        twice = [one for one, count in found.items() if count > 1]
        assert not twice, (len(twice), sorted(twice)[:4], self.history)
        if self.given.get("table_format") != "delta" and any(self.output.rglob("*.parquet")):
            assert duckdb_count(self.output) == len(found), self.history
        return found

    def _files(self) -> list[str]:
        if self.given.get("table_format") != "delta":
            return [str(self.output)]
        from deltalake import DeltaTable

        return DeltaTable(self.output).file_uris()


class ReplayedTableRounds(TableRounds):
    """Rounds of ``replay`` into one table. Each round replays the records that it has published."""

    def __init__(self, place: Path, admin: Admin, drivers: Pair, given: Mapping[str, Any]) -> None:
        super().__init__(place, admin, drivers, given)
        self.checkpoint = None

    def publish(self, rng: random.Random) -> None:
        self.given["offsets"] = publish_and_select(self, super().publish, rng)
        self.given.pop("topics", None)

    def more(self, rng: random.Random) -> None: ...

    def check(self, *, is_complete: bool) -> None:
        found = self.found_once() if self.output.exists() else Counter()
        if is_complete:
            assert found == expected(self.admin, self.topic), self.history
            assert self.second.ids(*self._files()) == found, self.history


def publish_and_select(rounds: DriverRounds, publish_some: Callable[[random.Random], None], rng: random.Random) -> str:
    """Publishes records; returns their offsets in the form of a replay's ``offsets``."""
    topic = rounds.topic
    before = ends(rounds.admin, topic)
    publish_some(rng)
    after = ends(rounds.admin, topic)
    return json.dumps({topic: {str(tp.partition): [before[tp], end] for tp, end in after.items()}})


class TopicRounds(DriverRounds):
    """Rounds of ``transform``, or of a query with ``transactional_writer``. The rows name the records they are from."""

    def __init__(self, place: Path, admin: Admin, drivers: Pair, given: Mapping[str, Any]) -> None:
        super().__init__(place, admin, drivers, given)
        self.checkpoint = Path(given["checkpoint"]) if "checkpoint" in given else None

    def sources(self) -> Counter[RecordId]:
        records = committed_records(self.given["bootstrap_servers"], self.given["to_topic"])
        return Counter(source_of(self.source_text(record)) for record in records)

    def source_text(self, record: Any) -> bytes:
        found: bytes = record.value
        return found

    def check(self, *, is_complete: bool) -> None:
        found = self.sources()
        twice = [one for one, count in found.items() if count > 1]
        assert not twice, (len(twice), sorted(twice)[:4], self.history)
        wanted = expected(self.admin, self.topic)
        assert set(found) <= set(wanted), self.history
        if is_complete:
            assert found == wanted, (len(found), len(wanted), self.history)
        if "group" in self.given:
            commits = self.check_group()
            below = {(tp.topic, tp.partition, at) for tp, offset in commits.items() for at in range(offset)}
            assert below == set(found), self.history


class ReplayedTopicRounds(TopicRounds):
    """Rounds of ``replay --exactly-once`` into one topic."""

    def publish(self, rng: random.Random) -> None:
        self.given["offsets"] = publish_and_select(self, super().publish, rng)
        self.given.pop("topics", None)

    def more(self, rng: random.Random) -> None: ...

    def source_text(self, record: Any) -> bytes:
        return dict(record.headers)["odradek-replayed-from"]


def source_of(text: bytes) -> RecordId:
    """Returns the record of ``topic-partition@offset``."""
    where, _, offset = text.decode().rpartition("@")
    topic, _, partition = where.rpartition("-")
    return topic, int(partition), int(offset)
