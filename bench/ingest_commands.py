"""Measures whole commands, from process start to end: topics into tables, and a backlog with a kill of the driver."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow.parquet as pq

from bench.ingest_session import CONNECTOR, SETTINGS, Figures, check_rows, connector_settings, data_files, emptied
from bench.memory_curve import MemorySampler, Sample
from bench.sides import with_descendants
from odradek.spark.offsets.source_offset import SourceOffset

COMMAND = "odradek"
_SCRIPT = Path(__file__).with_name("connector_command.py")
_RUN_S = 1800
_END_S = 60
_POLL_S = 0.05


@dataclass(frozen=True)
class Commands:
    """Runs commands for one broker in the directory ``work``.

    ``master``: Spark's master for our command. The connector's script always has ``local[2]``.
    """

    bootstrap: str
    work: Path
    master: str = "local[2]"

    def ingest(self, topic: str, table: Path, *more: str) -> list[str]:
        """The command line of ``odradek pipeline ingest``, with a new group and the options ``more``."""
        group = f"bench-{uuid.uuid4().hex[:12]}"
        script = Path(sys.executable).with_name("odradek")
        command = [str(script), "pipeline", "ingest", "-b", self.bootstrap, "--topics", topic, "--group", group]
        command += ["--output", str(table), "--checkpoint", str(table.with_name("checkpoint"))]
        command += ["--master", self.master, "--json", *more]
        for name, value in SETTINGS.items():
            command += ["--conf", f"{name}={value}"]
        return command

    def connector(self, topic: str, table: Path) -> list[str]:
        checkpoint = table.with_name("checkpoint")
        settings = [f"{name}={value}" for name, value in connector_settings().items()]
        return [sys.executable, str(_SCRIPT), self.bootstrap, topic, str(table), str(checkpoint), *settings]

    def cold(self, side: str, topic: str, rows: int) -> Figures:
        """Runs a side's command twice. The second run finds no new records.

        ``s`` and ``nothing_s``: the seconds of the first and the second run. ``mb``: the size of the table. Raises
        RuntimeError if a run fails, or if the table does not have ``rows`` rows.
        """
        with emptied(self.work / "table") as table:
            command = self.connector(topic, table) if side == CONNECTOR else self.ingest(topic, table)
            figures = {"s": self._took(command)}
            figures["mb"] = check_rows(side, table, rows) / 1e6
            os.sync()
            figures["nothing_s"] = self._took(command)
            check_rows(side, table, rows)
        return figures

    def _took(self, command: list[str]) -> float:
        log = self.work / "command.log"
        with log.open("wb") as output:
            began = time.perf_counter()
            with ended(_started(command, output)) as process:
                code = process.wait(_RUN_S)
            took = time.perf_counter() - began
        if code:
            raise RuntimeError(f"{command[:3]} ended with {code}: {log.read_text(errors='replace')[-2000:]}")
        return took

    def backlog(self, topic: str, rows: int, more: list[str]) -> tuple[Figures, list[Sample]]:
        """Ingests a backlog into a table, and then into a second table with a kill -9 of the driver in the middle.

        Returns the figures, and the memory samples of the first ingest. ``again``: the records that the run after the
        kill read again; ``batches_again``: the micro-batches of these records.
        """
        with emptied(self.work / "table") as table:
            began = time.perf_counter()
            done, samples = self._sampled(self.ingest(topic, table, *more))
            took = time.perf_counter() - began
            size = check_rows(COMMAND, table, rows)
        figures = {"s": took, "batches": float(done["batches"]), "mb": size / 1e6}
        with emptied(self.work / "table") as table:
            command = self.ingest(topic, table, *more)
            self._killed(command, table, int(done["batches"]) // 2, done["seconds"] / done["batches"])
            figures |= self._after_kill(command, table, rows)
        return figures, samples

    def _sampled(self, command: list[str]) -> tuple[dict[str, float], list[Sample]]:
        with (self.work / "command.log").open("wb") as log:
            with ended(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)) as process:
                sampler = MemorySampler(process.pid)
                sampler.start()
                output, _ = process.communicate(timeout=_RUN_S)
            sampler.stop()
        if process.returncode:
            raise RuntimeError(f"ingest ended with {process.returncode}: {(self.work / 'command.log').read_text()}")
        found: dict[str, float] = json.loads(output)
        return found, sampler.samples

    def _killed(self, command: list[str], table: Path, after: int, batch_s: float) -> None:
        """Kills the driver ``batch_s / 2`` seconds after it has planned micro-batch ``after``.

        Then waits until Java and the workers have ended.
        """
        checkpoint = table.with_name("checkpoint")
        with (self.work / "command.log").open("wb") as log, ended(_started(command, log)) as process:
            _wait(lambda: newest(checkpoint / "offsets") >= after or process.poll() is not None, _RUN_S)
            time.sleep(batch_s / 2)
            started = with_descendants([process.pid])
        _wait(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started), _END_S)

    def _after_kill(self, command: list[str], table: Path, rows: int) -> Figures:
        checkpoint = table.with_name("checkpoint")
        finished, planned = newest(checkpoint / "commits"), newest(checkpoint / "offsets")
        done_to, planned_to = position(checkpoint, finished), position(checkpoint, planned)
        if planned_to >= rows:
            raise RuntimeError(
                "the run had planned its last micro-batch before the kill: choose a smaller --batch-size"
            )
        read = self._sampled(command)[0]["rows"]
        if read != rows - done_to:
            raise RuntimeError(f"the run after the kill read {read:,} records; {rows - done_to:,} were not finished")
        check_rows(COMMAND, table, rows)
        check_distinct(table, rows)
        batches = {"killed_in": float(planned), "batches_again": float(planned - finished)}
        return batches | {"read_after": float(read), "again": float(planned_to - done_to)}


def _started(command: list[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdout=log, stderr=log)


@contextmanager
def ended(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """Kills the process at the end of the block if it still runs."""
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def newest(log: Path) -> int:
    """The number of the newest micro-batch in a log of a checkpoint (``offsets``, ``commits``); -1 if there is none."""
    try:
        return max((int(name) for name in os.listdir(log) if name.isdecimal()), default=-1)
    except FileNotFoundError:
        return -1


def position(checkpoint: Path, batch: int) -> int:
    """The number of records up to the end of a micro-batch, from Spark's checkpoint; 0 for micro-batch -1."""
    if batch < 0:
        return 0
    text = (checkpoint / "offsets" / str(batch)).read_text()
    return sum(SourceOffset.from_json(json.loads(text.splitlines()[2])).positions.values())


def check_distinct(table: Path, rows: int) -> None:
    """Raises RuntimeError unless the table has ``rows`` different pairs of partition and offset."""
    places = []
    for path in data_files(table):
        columns = pq.read_table(path, columns=["partition", "offset"], partitioning=None)
        places.append((columns["partition"].to_numpy().astype(np.int64) << 48) | columns["offset"].to_numpy())
    distinct = len(np.unique(np.concatenate(places)))
    if distinct != rows:
        raise RuntimeError(f"the table holds {distinct:,} different records of {rows:,}")


def _wait(is_so: Callable[[], bool], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError("the condition stayed false")
        time.sleep(_POLL_S)
