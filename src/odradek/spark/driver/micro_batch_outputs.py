"""The topics that a query's function has written in a micro-batch: each topic has one transaction. No I/O.

One function may call several writers. Each transaction commits the number of the micro-batch for its topic. A second
call for the same topic would find this number and send nothing, so its rows would be lost. And the offsets of a source
can be in one transaction only: in the first of two transactions, they would be visible before the rows of the second.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from odradek.spark.driver.micro_batch_number import MicroBatchRefused


class Output(NamedTuple):
    """A topic, and the id of its cluster; None if the cluster has none."""

    cluster: str | None
    topic: str


@dataclass
class _QueryRun:
    """One run of a query. ``writers`` and ``batches``: each output's last writer, and its last micro-batch."""

    run: str
    writers: dict[Output, object] = field(default_factory=dict)
    batches: dict[Output, int] = field(default_factory=dict)


class MicroBatchOutputs:
    """The outputs of this process, by query."""

    def __init__(self) -> None:
        self._runs: dict[str, _QueryRun] = {}

    def is_last_writer(self, query: str, run: str, output: Output, writer: object) -> bool:
        """Returns whether this writer was the last one to begin. A writer that began later has fenced this one."""
        return self._run_of(query, run).writers.get(output) is writer

    def set_last_writer(self, query: str, run: str, output: Output, writer: object) -> None:
        self._run_of(query, run).writers[output] = writer

    def check(self, query: str, run: str, output: Output, batch: int, groups: Sequence[str]) -> None:
        """Raises MicroBatchRefused if the micro-batch cannot be written to the output any more.

        ``groups``: the groups of the sources whose offsets are in the output's transaction.
        """
        written = [one for one, last in self._run_of(query, run).batches.items() if last == batch]
        if output in written:
            raise MicroBatchRefused(
                f"this query's function has written micro-batch {batch} to topic {output.topic} already, in a "
                "transaction that is committed, so the rows of this second call are not in the topic: make one "
                "DataFrame of all rows for the topic, with union, write it by one call, and start with a new checkpoint"
            )
        if written and groups:
            others = ", ".join(sorted(one.topic for one in written))
            raise MicroBatchRefused(
                f"micro-batch {batch} is in topic {others} already, and topic {output.topic} would be another "
                f"transaction. The offsets of the query's source (group {', '.join(groups)}) can be in one transaction "
                "only: with several topics set commitOffsets=true on the source, which commits after the micro-batch"
            )

    def set_last_batch(self, query: str, run: str, output: Output, batch: int) -> None:
        self._run_of(query, run).batches[output] = batch

    def forget_ended(self, is_active: Callable[[str], bool]) -> None:
        """Forgets the queries that do not run any more."""
        for query, found in list(self._runs.items()):
            # A query that has started again in the meantime has another entry, which stays.
            if not is_active(query) and self._runs.get(query) is found:
                del self._runs[query]

    def _run_of(self, query: str, run: str) -> _QueryRun:
        found = self._runs.get(query)
        if found is None or found.run != run:
            found = self._runs[query] = _QueryRun(run)
        return found
