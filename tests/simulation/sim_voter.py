"""The only voter of a metadata log in a world with crashes, power cuts and disk errors.

A schedule is a row of random events: changes of the catalogue whose syncs end later, snapshots, clean stops, kills,
power cuts between and inside of all of these, and failed syncs. An observer reads what is committed, as a follower of
the log would. After each event and each start:

* an acknowledged change is in the catalogue, and no other one;
* a committed record keeps its offset, its epoch and its bytes, whatever the power cut takes;
* the high watermark never goes back;
* an epoch has one incarnation, and a LeaderChange begins it before anything is committed in it;
* ``quorum-state`` on the disk is not older than the log on the disk.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from uuid import UUID

from support.memory_files import Crash, MemoryFiles
from support.voters import make_voter
from support.world import SimulationFailure

from odradek.batches.header import BatchHeader, scan
from odradek.broker.loop.scheduler import Steps, finish
from odradek.broker.metadata.change import Change
from odradek.broker.metadata.quorum import OneVoterQuorum, quorum_of
from odradek.broker.metadata.stored_catalog import StoredCatalog
from odradek.broker.metadata_log import quorum_state
from odradek.broker.metadata_log.check import check_log
from odradek.broker.metadata_log.log import DIRECTORY, MetadataConfig
from odradek.catalog.state import GROUP, AlterConfigs
from odradek.core.deferred import Deferred
from odradek.core.errors import KafkaError, StorageError
from odradek.storage.disk import checkpoints

HOME = Path("/data")
PATH = HOME / DIRECTORY
T0 = 1_700_000_000_000
EVENTS = 24
LIMITS = MetadataConfig(bytes_between_snapshots=900, segment_bytes=700, retention_bytes=1_500)
"""So small that snapshots, new segments and their removal are frequent."""
READ_BYTES = 1 << 20


class SyncThread:
    """The thread of the syncs: its job runs when the schedule says so."""

    def __init__(self) -> None:
        self.job: tuple[Callable[[], None], Deferred[BaseException | None]] | None = None

    def run(self, job: Callable[[], None]) -> Deferred[BaseException | None]:
        promise: Deferred[BaseException | None] = Deferred()
        self.job = job, promise
        return promise

    def finish(self) -> None:
        assert self.job is not None
        (job, promise), self.job = self.job, None
        try:
            job()
        except KafkaError as error:
            promise.resolve(error)
        else:
            promise.resolve(None)


class VoterScenario:
    """One schedule. ``run`` raises SimulationFailure; ``trace`` has the events, ``counts`` their numbers."""

    def __init__(self, seed: int) -> None:
        self.trace: list[str] = []
        self.counts: Counter[str] = Counter()
        self._seed = seed
        self._dice = random.Random(seed)
        self._files = MemoryFiles()
        self._catalog: StoredCatalog | None = None
        self._thread = SyncThread()
        self._snapshot: Steps[None] | None = None
        self._tried: set[str] = set()
        self._acknowledged: set[str] = set()
        self._incarnations: dict[int, int] = {}
        self._committed: dict[int, tuple[int, bytes]] = {}
        self._watermark = 0
        self._starts = 0
        make_voter(HOME, epoch=self._dice.choice((0, 0, 7)), files=self._files)
        self._files.sync_dir(HOME.parent)

    def run(self) -> None:
        for _ in range(EVENTS):
            if self._catalog is None:
                self._attempt(self._start)
            else:
                events = self._events()
                self._attempt(self._dice.choices(list(events), list(events.values()))[0])
        self._cut_power()
        self._start()
        self._observe()

    def _events(self) -> dict[Callable[[], None], int]:
        always = {self._advance_snapshot: 3, self._kill: 1, self._cut_power: 1}
        if self._thread.job is not None:
            return always | {self._sync: 8, self._fail_sync: 1}
        return always | {self._change: 9, self._stop: 1}

    def _attempt(self, event: Callable[[], None]) -> None:
        """Runs an event, which a crash may interrupt."""
        self._note(event.__name__.strip("_"))
        if self._dice.random() < 0.15:
            self._files.crash_after(self._dice.randrange(10))
        elif self._dice.random() < 0.05:
            self._files.tear_after(self._dice.randrange(120))
        try:
            event()
            self._files.crash()  # no crash any more
            self._observe()
        except Crash:
            self._note("crash")
            self._note_epochs()
            self._cut_power() if self._dice.random() < 0.6 else self._kill()

    def _note(self, text: str) -> None:
        self.trace.append(text)
        self.counts[text] += 1

    def _fail(self, text: str) -> None:
        raise SimulationFailure(f"seed {self._seed}: {text}; events: {', '.join(self.trace)}")

    # --- the process --------------------------------------------------------------------------------------------

    def _start(self) -> None:
        files = self._files
        clean = checkpoints.read_clean_shutdown(HOME, files)
        self._starts += 1
        try:
            catalog = StoredCatalog.open(
                HOME, clean=clean, node_id=1, directory_id=UUID(int=9), now_ms=lambda: T0, files=files, config=LIMITS
            )
        except StorageError as error:
            self._fail(f"a start is refused: {error}")
        self._check_catalogue(catalog)
        if self._dice.random() < 0.2:  # a start that changes settings, or a tool
            name = self._new_name()
            catalog.apply(AlterConfigs(GROUP, name, {"x": "1"}))
            self._acknowledged.add(name)
        catalog.lead()
        checkpoints.remove_clean_shutdown(HOME, files)
        self._catalog, self._thread, self._snapshot = catalog, SyncThread(), None
        quorum = quorum_of(catalog, 1, self._thread.run)
        assert isinstance(quorum, OneVoterQuorum)
        self._quorum = quorum
        self._check_records(catalog)
        self._begin(quorum.epoch)

    def _kill(self) -> None:
        self._files.crash()
        self._catalog = None

    def _cut_power(self) -> None:
        self._note_epochs()
        self._files.power_cut(self._dice.random if self._dice.random() < 0.5 else lambda: 0.0)
        self._catalog = None
        try:
            state = quorum_state.read(PATH, self._files)
        except StorageError as error:
            self._fail(str(error))
        epoch = check_log(PATH, self._files).epoch
        if state is None or state.epoch < epoch:
            self._fail(f"quorum-state on the disk is {state}, and the log has the epoch {epoch}")

    def _stop(self) -> None:
        assert self._catalog is not None
        self._catalog.close()
        checkpoints.write_clean_shutdown(HOME, self._files)
        self._catalog = None

    # --- changes ------------------------------------------------------------------------------------------------

    def _new_name(self) -> str:
        name = f"g{len(self._tried)}"
        self._tried.add(name)
        return name

    def _change(self) -> None:
        assert self._catalog is not None
        image, name = self._catalog.catalog, self._new_name()
        change = Change(image.state)
        finish(change.add(AlterConfigs(GROUP, name, {"x": "1" * self._dice.randrange(1, 90)})))

        def end(result: int | KafkaError) -> None:
            if isinstance(result, KafkaError):
                self._note("refused")
                return
            finish(image.commit(result, change.records))
            self._acknowledged.add(name)

        with self._quorum.at_once() if self._dice.random() < 0.1 else nullcontext():
            self._quorum.append(change.packed, len(change.records)).then(end)

    def _sync(self) -> None:
        self._thread.finish()

    def _fail_sync(self) -> None:
        """The disk refuses a sync: what it has is not known, so the broker ends."""
        self._files.fail_sync = lambda path: path.suffix == ".log"
        try:
            self._thread.finish()
        finally:
            self._files.fail_sync = lambda path: False
        self._cut_power() if self._dice.random() < 0.5 else self._kill()

    def _advance_snapshot(self) -> None:
        assert self._catalog is not None
        if self._snapshot is None:
            if self._thread.job is None:
                self._snapshot = self._catalog.log.begin_snapshot(self._catalog.catalog.state, _at_once)
            return
        for step in self._snapshot:
            if step is not None or self._dice.random() < 0.3:
                return
        self._snapshot = None

    # --- what must hold -----------------------------------------------------------------------------------------

    def _check_catalogue(self, catalog: StoredCatalog) -> None:
        present = {name for kind, name in catalog.catalog.state.configs if kind == GROUP}
        if lost := self._acknowledged - present:
            self._fail(f"acknowledged changes are lost: {sorted(lost)}")
        if unknown := present - self._tried:
            self._fail(f"no event has made {sorted(unknown)}")

    def _check_records(self, catalog: StoredCatalog) -> None:
        """Checks that the committed records are those from before the start."""
        found = {header.base_offset: (header.leader_epoch, data) for header, data in self._batches(0)}
        start = catalog.log.records.log_start_offset
        for offset, batch in self._committed.items():
            if offset >= start and found.get(offset) != batch:
                self._fail(f"the committed record at offset {offset} is another one")
        self._committed = {offset: batch for offset, batch in self._committed.items() if offset >= start}
        own = [header for header, _ in self._batches(0) if header.leader_epoch == self._quorum.epoch]
        if not own or not own[0].is_control:
            self._fail(f"no LeaderChange begins the epoch {self._quorum.epoch}")

    def _observe(self) -> None:
        """Reads what is committed since the last event."""
        if self._catalog is None:
            return
        watermark = self._quorum.committed_offset
        if watermark < self._watermark:
            self._fail(f"the high watermark goes back from {self._watermark} to {watermark}")
        if watermark > self._watermark:
            for header, data in self._batches(self._watermark):
                if header.base_offset < watermark:
                    self._committed[header.base_offset] = header.leader_epoch, data
            self._watermark = watermark

    def _batches(self, start: int) -> Iterator[tuple[BatchHeader, bytes]]:
        """Yields the batches of the log from an offset on."""
        assert self._catalog is not None
        log = self._catalog.log.records
        offset = max(start, log.log_start_offset)
        while offset < log.log_end_offset:
            data = log.read(offset, READ_BYTES).bytes()
            for position, header in scan(data):
                yield header, data[position : position + header.size_in_bytes]
                offset = header.last_offset + 1

    def _note_epochs(self) -> None:
        """Notes the newest epoch of the log before a crash takes it: a later start may not begin it."""
        epoch = check_log(PATH, self._files).epoch
        if epoch > max(self._incarnations, default=0):
            self._begin(epoch)

    def _begin(self, epoch: int) -> None:
        first = self._incarnations.setdefault(epoch, self._starts)
        if first != self._starts:
            self._fail(f"the epoch {epoch} of start {first} begins again at start {self._starts}")


def _at_once(job: Callable[[], None]) -> Deferred[BaseException | None]:
    job()
    return Deferred.of(None)
