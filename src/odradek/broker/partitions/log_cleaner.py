"""The broker's log cleaner: chooses the next log, starts the cleaning, and reports the state of the cleaner.

There are ``log.cleaner.threads`` tasks. Each one cleans the dirtiest log that is due, applies retention to compacted
logs, and pauses for ``log.cleaner.backoff.ms`` if no log was due. Small logs are cleaned on the event loop, a
millisecond at a time. For logs with more bytes or with large batches, a process of the lowest priority
(``storage/cleaning/cleaner``) reads closed segments and writes new ones. Only the swap of the segments runs in the
broker: a few renames between two requests.

A partition whose cleaning fails is not cleaned for ten minutes. The broker logs the failure and cleans the other
partitions as before. ``status`` reports such partitions. It also reports whether a task has died, because then
``__consumer_offsets`` can fill the disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from odradek.broker.partitions.log_directory import LogDirectory
from odradek.broker.partitions.partition import Partition
from odradek.broker.settings.config import BrokerConfig
from odradek.core.errors import KafkaError, OdradekError, StorageError
from odradek.core.ids import PartitionKey, TopicPartition
from odradek.storage.cleaning.cleaner import CleanedSegment, CleaningResult, Counts, TooLargeForSteps, clean
from odradek.storage.cleaning.jobs import Job, LogToClean, job_of, max_keys, measure
from odradek.storage.cleaning.rows import RowEngine
from odradek.storage.disk import checkpoints
from odradek.storage.disk.write_failures import is_passing, lacks_room
from odradek.storage.log import Log
from odradek.storage.segments.segment import Segment

log = logging.getLogger("odradek.cleaner")

SMALL_JOB_BYTES = 1 << 20
"""Up to this size, a cleaning on the event loop costs less than the start of a process."""
SMALL_BATCH_BYTES = 64 << 10
"""The compression and decompression of a larger batch would block the event loop for too long."""
SLICE_S = 0.001
REST_S = 0.004
RETRY_MS = 600_000
FULL_RETRY_MS = 3_000
EXIT_TIMEOUT_S = 30.0


_Message = dict[str, Any]
"""A line of the cleaning process: JSON."""


class _CleaningAborted(Exception):
    """The log was removed or changed during its cleaning, or the broker stops. This is not an error."""


@dataclass(frozen=True, slots=True)
class LastCleaning:
    """The last finished cleaning. ``seconds`` is its duration.

    The dirty section had the offsets from ``first_dirty_offset`` to ``end_offset`` (excluded)."""

    partition: TopicPartition
    first_dirty_offset: int
    end_offset: int
    seconds: float
    counts: Counts
    in_process: bool


@dataclass(frozen=True, slots=True)
class CleaningStatus:
    """The state of the cleaner. Times are in ms since 1970 (-1: never), sizes in bytes.

    ``dead_thread_count`` is the number of tasks that should run and have ended, like Kafka's metric of that name.
    ``dirty_bytes`` does not contain uncleanable partitions.
    """

    thread_count: int
    dead_thread_count: int
    last_run_ms: int
    cleanings: int
    last_cleaning: LastCleaning | None
    in_progress: tuple[TopicPartition, ...]
    dirty_bytes: dict[TopicPartition, int]
    max_dirty_ratio: float
    uncleanable: dict[TopicPartition, str]
    uncleanable_bytes: int


@dataclass(frozen=True, slots=True)
class _Uncleanable:
    log: Log
    reason: str
    until_ms: int
    lacked_space: bool = False


class BrokerLogCleaner:
    """The log cleaner of one broker and event loop. The broker makes it after it has opened its logs."""

    def __init__(
        self,
        directory: LogDirectory,
        config: BrokerConfig,
        *,
        now_ms: Callable[[], int],
        call_at: Callable[[int, Callable[[], None]], Any],
    ) -> None:
        self.small_job_bytes = SMALL_JOB_BYTES
        self._directory = directory
        self._config = config
        self._now_ms = now_ms
        self._call_at = call_at
        self._tasks: list[asyncio.Task[None]] = []
        self._woken = asyncio.Event()
        self._in_progress: set[PartitionKey] = set()
        self._uncleanable: dict[PartitionKey, _Uncleanable] = {}
        self._full: dict[PartitionKey, int] = {}
        """The number of cleanings of a log that have lacked space since the last success."""
        self._written: dict[TopicPartition, int] = {}
        self._writing = asyncio.Lock()
        self._file = threading.Lock()
        self._drops = 0
        self._last_run_ms = -1
        self._cleanings = 0
        self._last: LastCleaning | None = None
        self._load()

    # --- tasks ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the missing tasks of ``log.cleaner.threads``, and restarts tasks that have ended."""
        for number in range(self._config.log_cleaner_threads):
            if number == len(self._tasks) or self._tasks[number].done():
                task = asyncio.get_running_loop().create_task(self._work(number), name=f"log cleaner {number}")
                task.add_done_callback(_report_death)
                self._tasks[number : number + 1] = [task]

    async def stop(self) -> None:
        """Ends all cleanings and discards unfinished ones."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def wake(self) -> None:
        """Ends the backoff: the tasks look for work now."""
        self._woken.set()

    async def _work(self, number: int) -> None:
        while number < self._config.log_cleaner_threads:
            choice = self._dirtiest()
            if choice is not None:
                await self._clean(*choice)
            self._retain()
            if choice is None:
                await self._pause()
            else:
                await asyncio.sleep(0)

    async def _pause(self) -> None:
        self._woken.clear()
        alarm = self._call_at(self._now_ms() + self._config.log_cleaner_backoff_ms, self._woken.set)
        try:
            await self._woken.wait()
        finally:
            alarm.cancel()

    def _retain(self) -> None:
        """Applies retention to compacted logs. The cleaner does this, because a log must not be cleaned meanwhile."""
        for key, partition in self._compacted():
            if key in self._in_progress or key in self._uncleanable:
                continue
            try:
                partition.log.removals.retain(self._now_ms())
            except KafkaError:
                continue  # the log is offline and has logged the reason
            except Exception as error:
                self._give_up(key, partition.log, error)

    # --- the next log ---------------------------------------------------------------------------------------------

    def _compacted(self) -> Iterator[tuple[PartitionKey, Partition]]:
        for key, partition in tuple(self._directory.partitions.items()):
            if not partition.failure and partition.log.disk.offline is None and partition.log.config.is_compacted:
                yield key, partition

    def _dirtiest(self) -> tuple[PartitionKey, Log, LogToClean] | None:
        """Returns the dirtiest log that is due, if there is one, and marks it as being cleaned."""
        self._last_run_ms = self._now_ms()
        self._drop_old_failures()
        best: tuple[PartitionKey, Log, LogToClean] | None = None
        for key, partition in self._compacted():
            if key in self._in_progress or key in self._uncleanable:
                continue
            dirt = self._measure(key, partition.log)
            if dirt is None or not dirt.is_due(partition.log.config.min_cleanable_dirty_ratio):
                continue
            if best is None or dirt.ratio > best[2].ratio:
                best = key, partition.log, dirt
        if best is not None:
            self._in_progress.add(best[0])
            best[1].removals.is_being_cleaned = True
        return best

    def _measure(self, key: PartitionKey, target: Log) -> LogToClean | None:
        try:
            dirt = measure(target, self._now_ms())
        except Exception as error:
            self._give_up(key, target, error)
            return None
        if dirt.reset:
            log.warning("%s-%d: cleaning restarts from offset %d: %s", *key, dirt.first_dirty_offset, dirt.reset)
        if target.removals.cleaned_offset is not None and dirt.first_dirty_offset != target.removals.cleaned_offset:
            target.removals.cleaned_offset = dirt.first_dirty_offset
        return dirt

    def _drop_old_failures(self) -> None:
        """Removes the failures of logs that were removed, and failures older than ``RETRY_MS``."""
        for key, failure in tuple(self._uncleanable.items()):
            partition = self._directory.partitions.get(key)
            is_obsolete = partition is None or bool(partition.failure) or partition.log is not failure.log
            if is_obsolete or (self._now_ms() >= failure.until_ms and not self._is_disk_full(failure)):
                del self._uncleanable[key]

    def _is_disk_full(self, failure: _Uncleanable) -> bool:
        """Returns whether a cleaning lacked space, and other writes of the broker fail at present."""
        return failure.lacked_space and len(self._directory.failures) > 0

    def _give_up(self, key: PartitionKey, target: Log, error: BaseException) -> None:
        """Excludes a log from cleaning for ``RETRY_MS``. Logs an unexpected error with its traceback.

        If it lacked space, the log is excluded for ``FULL_RETRY_MS``, which doubles with each such failure: an attempt
        reads the log, and takes the rest of the space for a while.
        """
        cause = error if isinstance(error, OSError) else error.__cause__
        if isinstance(cause, OSError) and lacks_room(cause):  # also a sync's error: the new files are discarded
            count = self._full[key] = self._full.get(key, 0) + 1
            delay_ms = min(FULL_RETRY_MS << (count - 1), RETRY_MS)
            self._uncleanable[key] = _Uncleanable(target, str(error), self._now_ms() + delay_ms, lacked_space=True)
            if count == 1:
                log.warning("%s-%d cannot be cleaned; the next attempt is in %d s: %s", *key, delay_ms // 1000, error)
            return
        reason = str(error) or type(error).__name__
        is_expected = isinstance(error, OdradekError | OSError)
        log.error(
            "%s-%d cannot be cleaned; the next attempt is in %d minutes: %s", *key, RETRY_MS // 60_000, reason,
            exc_info=None if is_expected else error,
        )  # fmt: skip
        self._uncleanable[key] = _Uncleanable(target, reason, self._now_ms() + RETRY_MS)

    # --- cleaning -------------------------------------------------------------------------------------------------

    async def _clean(self, key: PartitionKey, target: Log, dirt: LogToClean) -> None:
        began = perf_counter()
        try:
            result, in_process = await self._compact(target)
            target.removals.cleaned_offset = result.end_offset
            await self._checkpoint(target)
        except _CleaningAborted as reason:
            log.info("%s-%d: cleaning ended early: %s", *key, reason)
        except Exception as error:
            # A deleted log needs no cleaning, and a log that went offline has logged the reason.
            if target.disk.offline is None:
                self._give_up(key, target, error)
        else:
            self._full.pop(key, None)
            self._cleanings += 1
            self._last = LastCleaning(
                TopicPartition(*key),
                dirt.first_dirty_offset,
                result.end_offset,
                perf_counter() - began,
                result.counts,
                in_process,
            )
            _log_cleaning(self._last)
        finally:
            await _discard(target)
            self._in_progress.discard(key)
            target.removals.is_being_cleaned = False

    async def _compact(self, target: Log) -> tuple[CleaningResult, bool]:
        """Cleans a log. Returns the result, and whether a separate process cleaned the log."""
        # Only synced segments are replaced, so that the recovery point stays correct.
        end = target.active.base_offset
        if target.recovery_point < end:
            await asyncio.to_thread(target.sync.flush_closed, end)
        await asyncio.to_thread(target.removals.discard_cleaned)
        config = self._config
        threads = max(config.log_cleaner_threads, 1)
        job = job_of(
            target,
            measure(target, self._now_ms()),
            self._now_ms(),
            max_keys=max_keys(
                config.log_cleaner_dedupe_buffer_size // threads,
                config.log_cleaner_io_buffer_load_factor,
            ),
            bytes_per_second=config.log_cleaner_io_max_bytes_per_second / threads,
        )
        swap = _Swap(target)
        if job.size <= self.small_job_bytes:
            try:
                return await self._clean_on_loop(job, swap), False
            except TooLargeForSteps:
                log.debug("%s has large batches: a separate process cleans it", target.path.name)
        return await self._clean_in_process(job, swap), True

    async def _clean_on_loop(self, job: Job, swap: _Swap) -> CleaningResult:
        """Cleans a log on the event loop, in slices of ``SLICE_S``."""
        steps = clean(job, RowEngine(), self._directory.files, max_packed=SMALL_BATCH_BYTES)
        began, size = perf_counter(), 0
        try:
            while True:
                until = perf_counter() + SLICE_S
                while True:
                    step = next(steps)
                    if isinstance(step, CleanedSegment):
                        await asyncio.to_thread(step.finish)
                        swap(step.base_offset, step.replaces)
                        break
                    size += step
                    if perf_counter() >= until:
                        break
                ahead = size / job.bytes_per_second - (perf_counter() - began)
                await asyncio.sleep(max(REST_S, ahead))
        except StopIteration as done:
            finished: CleaningResult = done.value
            return finished
        finally:
            steps.close()

    async def _clean_in_process(self, job: Job, swap: _Swap) -> CleaningResult:
        """Cleans a log in a separate process. A thread communicates with it."""
        loop = asyncio.get_running_loop()
        worker = CleanerProcess(job)

        async def swapped(message: _Message) -> None:
            swap(message["base_offset"], message["replaces"])

        def on_segment(message: _Message) -> None:
            asyncio.run_coroutine_threadsafe(swapped(message), loop).result()

        talk = loop.run_in_executor(None, worker.run, on_segment)
        try:
            return await asyncio.shield(talk)
        finally:
            worker.end()
            await asyncio.wait([talk])
            # Retrieves the thread's exception: after a cancellation no other code does, and asyncio would print it.
            talk.exception()

    # --- checkpoint and status ------------------------------------------------------------------------------------

    def _load(self) -> None:
        files = self._directory.files
        try:
            self._written = checkpoints.read_offsets(self._directory.path / checkpoints.CLEANER, files)
        except (StorageError, OSError) as error:
            log.warning("cleaning restarts at the first offset of each log, without a checkpoint: %s", error)
        for key, partition in self._directory.partitions.items():
            if not partition.failure:
                partition.log.removals.cleaned_offset = self._written.get(TopicPartition(*key))
        self.forget_dropped()

    def forget_dropped(self) -> None:
        """Removes deleted and replaced logs from the checkpoint, because its entries have only names.

        The broker calls this method after the deletion or creation of topics, before it replies to the request.
        """
        self._drops += 1  # a thread that is about to write an older list discards that list
        try:
            self._forget()
        except OSError as error:
            if is_passing(error):
                path = self._directory.path / checkpoints.CLEANER
                self._directory.failures.begin(path, path, "write", error, self._forget)
            else:
                log.error("the checkpoint of the log cleaner could not be written: %s", error)

    def _forget(self) -> None:
        with self._file:
            offsets = {name: offset for name, offset in self._written.items() if self._is_cleaned(name)}
            if offsets != self._written:
                checkpoints.write_offsets(self._directory.path / checkpoints.CLEANER, offsets, self._directory.files)
                self._written = offsets

    def _is_cleaned(self, name: TopicPartition) -> bool:
        partition = self._directory.partitions.get((name.topic, name.partition))
        return partition is not None and not partition.failure and partition.log.removals.cleaned_offset is not None

    def _cleaned_offsets(self) -> dict[TopicPartition, int]:
        return {
            TopicPartition(*key): partition.log.removals.cleaned_offset
            for key, partition in self._directory.partitions.items()
            if not partition.failure and partition.log.removals.cleaned_offset is not None
        }

    async def _checkpoint(self, target: Log) -> None:
        """Writes the end offsets of cleanings to the checkpoint, after the new segments' names are synced."""
        async with self._writing:
            if self._cleaned_offsets() == self._written:
                return
            await asyncio.to_thread(self._directory.files.sync_dir, target.path)
            while (offsets := self._cleaned_offsets()) != self._written:
                await asyncio.to_thread(self._write, offsets, self._drops)

    def _write(self, offsets: dict[TopicPartition, int], drops: int) -> None:
        with self._file:
            if drops == self._drops:
                checkpoints.write_offsets(self._directory.path / checkpoints.CLEANER, offsets, self._directory.files)
                self._written = offsets

    def status(self) -> CleaningStatus:
        """Returns the present state of the cleaner."""
        dirty: dict[TopicPartition, int] = {}
        sizes: dict[TopicPartition, int] = {}
        ratios = [0.0]
        for key, partition in self._compacted():
            name = TopicPartition(*key)
            sizes[name] = partition.log.size
            if key in self._uncleanable:
                continue
            try:
                dirt = measure(partition.log, self._now_ms())
            except (OdradekError, OSError):
                continue  # the next round of the cleaner logs the reason
            dirty[name] = dirt.dirty_bytes
            ratios.append(dirt.ratio)
        uncleanable = {TopicPartition(*key): failure.reason for key, failure in self._uncleanable.items()}
        return CleaningStatus(
            thread_count=sum(not task.done() for task in self._tasks),
            dead_thread_count=sum(task.done() for task in self._tasks[: self._config.log_cleaner_threads]),
            last_run_ms=self._last_run_ms,
            cleanings=self._cleanings,
            last_cleaning=self._last,
            in_progress=tuple(TopicPartition(*key) for key in sorted(self._in_progress)),
            dirty_bytes=dirty,
            max_dirty_ratio=max(ratios),
            uncleanable=uncleanable,
            uncleanable_bytes=sum(sizes.get(name, 0) for name in uncleanable),
        )


class _Swap:
    """Replaces segments of a log with cleaned ones, unless the log has changed since the job was made."""

    def __init__(self, target: Log) -> None:
        self._log = target
        self._planned: dict[int, Segment] = {segment.base_offset: segment for segment in target.segments}

    def __call__(self, base_offset: int, replaces: Sequence[int]) -> None:
        if self._log.disk.offline is not None:
            raise _CleaningAborted(f"the log {self._log.disk.offline}")
        if not self._log.removals.replace_segments(base_offset, [self._planned[base] for base in replaces]):
            raise _CleaningAborted("the log was truncated")


class CleanerProcess:
    """The process that cleans one log. A thread communicates with it."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.process: subprocess.Popen[bytes] | None = None
        self._ended = False

    def run(self, on_segment: Callable[[_Message], None]) -> CleaningResult:
        """Runs the process to its end.

        Raises StorageError with the process's reason, OSError if the process cannot start, _CleaningAborted if the
        broker stops.
        """
        if self._ended:
            raise _CleaningAborted("the broker stops")
        command = [sys.executable, "-m", "odradek.storage.cleaning.cleaner"]
        last: _Message = {}
        # In a new session, so that Ctrl-C signals only the broker, which then ends the process.
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, start_new_session=True) as process:
            self.process = process
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                # If the process died before it read its job, its exit code is the reason.
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.write(self._job.to_json())
                    process.stdin.flush()
                for line in process.stdout:
                    last = json.loads(line)
                    if "base_offset" in last:
                        on_segment(last)
                is_stopped = self._ended
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.close()
                process.wait(EXIT_TIMEOUT_S)
            finally:
                self.end()
        if "end_offset" in last:
            return CleaningResult(last["end_offset"], Counts(**last["counts"]))
        if is_stopped:
            raise _CleaningAborted("the broker stops")
        if last.get("errno") is not None and lacks_room(full := OSError(last["errno"], last["error"])):
            raise full
        reason = last.get("error") or last.get("gone") or _exit_reason(process.returncode)
        raise StorageError(reason)

    def end(self) -> None:
        """Kills the process if it still runs."""
        self._ended = True
        if self.process is not None and self.process.poll() is None:
            self.process.kill()


def _exit_reason(code: int) -> str:
    """Returns why the process ended, which has no words for this. It maps files: a page that the disk cannot read, or
    that the log has lost by a truncation, ends it by SIGBUS."""
    bus = getattr(signal, "SIGBUS", None)
    if bus is not None and code == -bus:
        return "its process could not read a part of a mapped file (SIGBUS)"
    return f"its process ended with code {code}"


async def _discard(target: Log) -> None:
    """Removes the files of an unfinished cleaning. If this fails, the next cleaning of this log removes them, or
    the next start of the broker."""
    if target.disk.offline is not None:
        return
    try:
        await asyncio.to_thread(target.removals.discard_cleaned)
    except OSError as error:
        log.warning(
            "%s: files of an unfinished cleaning could not be removed; the next cleaning of this log or the next start"
            " removes them: %s",
            target.path,
            error,
        )


def _report_death(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error(
            "a cleaner task has died, and compacted topics can grow: a restart of the broker, or a change of a topic "
            "or setting, starts the task again",
            exc_info=error,
        )


def _log_cleaning(cleaning: LastCleaning) -> None:
    counts = cleaning.counts
    log.info(
        "%s cleaned: dirty section [%d, %d), %d keys, %d of %d records kept, %.1f MB written, %.2f s%s",
        cleaning.partition,
        cleaning.first_dirty_offset,
        cleaning.end_offset,
        counts.keys,
        counts.records_kept,
        counts.records_read,
        counts.bytes_written / 1e6,
        cleaning.seconds,
        " in a separate process" if cleaning.in_process else "",
    )
