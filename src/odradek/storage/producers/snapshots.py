"""The snapshots of a log's producers, and the rebuild of their states from a snapshot after a truncation."""

from __future__ import annotations

from collections.abc import Callable, Generator

from odradek.batches.steps import BatchSteps
from odradek.core.errors import KafkaError
from odradek.storage.config import LogConfig
from odradek.storage.disk.disk_state import DiskState
from odradek.storage.disk.write_failures import SyncFailed
from odradek.storage.producers.producers import Producers
from odradek.storage.producers.rebuild import EndedTransaction, rebuild
from odradek.storage.producers.states import STATES_AT_ONCE
from odradek.storage.segments.segment_list import SegmentList


class ProducerSnapshots:
    """Writes the snapshots of one log's producers, and rebuilds their states.

    ``run_steps`` runs long work in steps. If it is None, the work is done at once.
    """

    __slots__ = ("_disk", "_producers", "_segments", "run_steps")

    def __init__(self, producers: Producers, segments: SegmentList, disk: DiskState) -> None:
        self.run_steps: Callable[[Generator[None, None, None]], object] | None = None
        self._producers = producers
        self._segments = segments
        self._disk = disk

    def save(self) -> None:
        """Writes the snapshot at ``Producers.end_offset``, in steps if there are many producers.

        Without the snapshot the next start only reads more batches. So after a passing error the next roll writes one.
        """
        self.end_rebuild()
        steps = None
        try:
            digests = self._segments.digests(with_segments=False)
            if self.run_steps is None or len(self._producers) <= STATES_AT_ONCE:
                self._producers.save(sync=False, digests=digests)
            else:
                steps = self._producers.save_in_steps(digests)
        except OSError as error:
            failure = self._failed(error)
            if self._disk.offline is not None:
                raise failure from error
        if steps is not None and self.run_steps is not None:
            self.run_steps(self._save_in_steps(steps))

    def _save_in_steps(self, steps: Generator[None, None, None]) -> Generator[None, None, None]:
        try:
            yield from steps
        except OSError as error:
            if self._disk.offline is None and not self._disk.closed:
                self._failed(error)

    def _failed(self, error: OSError) -> KafkaError:
        return self._disk.fail("write a snapshot of the producers", error)

    def save_last(self, *, is_changed: bool) -> None:
        """Writes the snapshot of a clean stop, with the digests of the segments. Raises OSError."""
        if is_changed:
            self._producers.save_again()
        self._producers.save(sync=True, digests=self._segments.digests(with_segments=True))

    def begin_rebuild(self, config: LogConfig, now_ms: int, on_end: Callable[[EndedTransaction], None]) -> None:
        """Begins to rebuild the states for the log's end. From here on, records with unknown states are unstable.

        ``on_end`` gets each transaction that a marker ends. Raises OSError.
        """
        self._producers.rebuild = rebuild(self._producers, self._segments.all, config, now_ms, on_end=on_end)
        next(self._producers.rebuild, None)

    def rest_of_rebuild(self) -> BatchSteps[None]:
        """Runs the steps of the present rebuild. They end early if the log is truncated again or closed."""
        steps = self._producers.rebuild
        while steps is not None and self._producers.rebuild is steps and self._disk.offline is None:
            self._advance(steps)
            yield None

    def continue_rebuild(self) -> None:
        """Runs the steps that are left of a rebuild, between other work if possible. Raises KafkaError."""
        if self._producers.rebuild is None:
            return
        if self.run_steps is None:
            self.end_rebuild()
        else:
            self.run_steps(self._continued())

    def _continued(self) -> Generator[None, None, None]:
        try:
            for _ in self.rest_of_rebuild():
                yield
        except KafkaError:
            pass  # the log is offline and has logged it

    def end_rebuild(self) -> None:
        """Runs the steps that are left of a rebuild. Raises KafkaError."""
        while self._producers.rebuild is not None:
            self._advance(self._producers.rebuild)

    def _advance(self, steps: Generator[None, None, None]) -> None:
        try:
            next(steps)
        except StopIteration:
            self._producers.rebuild = None
        except OSError as error:
            self._producers.rebuild = None
            raise self.failed_cut(error) from error

    def failed_cut(self, error: OSError) -> KafkaError:
        """Returns the error of a failed truncation. The log's end or its producers are unknown, so no error passes."""
        return self._disk.fail("truncate", SyncFailed(error.errno, str(error)))

    def forget(self) -> None:
        """Ends all steps without a write."""
        self._producers.end_snapshot()
        self._producers.rebuild = None
