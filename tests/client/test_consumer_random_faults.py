"""A consumer with three simulated brokers: leaders move, connections break, logs are truncated and compacted.

The seed decides each scenario, as far as threads allow. The records of a partition always come in the order of the log,
without gaps or repeats, from the start position on. After the last fault, all remaining records come.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from support.insides import engine_of
from support.simulated_cluster import ABORT, DONE, NODES, Chances, Lead, Log, Row, Written, simulated_cluster

from odradek import Consumer, OffsetAndMetadata, TopicPartition, aio
from odradek.batches.columns import COLUMNS
from odradek.client.consumer.records import Record
from odradek.client.errors import RequestTimedOut

STALLED_POLLS = 300
MOST_BATCHES = 120
FEW = ("offset", "timestamp", "value")


class OldLog(NamedTuple):
    """A log that was truncated at ``cut``, or the log of a deleted topic (``cut`` None). The consumer may still return
    records that it has fetched from it."""

    lead: Lead
    topic_id: UUID
    cut: int | None


class Reading:
    """The model of one partition. ``at`` is the next offset that the consumer returns; None: unknown."""

    def __init__(self, at: int | None, old_logs: list[OldLog]) -> None:
        self.highest = -1  # the highest position so far
        self.place(at, old_logs)

    def place(self, at: int | None, old_logs: list[OldLog], *, may_be_out_of_range: bool = False) -> None:
        self.at = at
        self.may_be_out_of_range = may_be_out_of_range
        """Whether ``at`` may be out of the range of the log: reading then starts at the log start."""
        self.is_without_epoch = True
        self.old_logs = old_logs
        self.highest = max(self.highest, at) if at is not None else self.highest

    def returned(self, at: int) -> None:
        self.at, self.may_be_out_of_range, self.is_without_epoch = at, False, False
        self.highest = max(self.highest, at)


class Visible:
    """The visible offsets of a log, to check for gaps."""

    def __init__(self, log: Log, committed: bool, start: int) -> None:
        self.offsets = sorted(offset for offset in log.visible(committed) if offset >= start)
        written = {offset for batch in log.batches for offset in batch.rows if offset >= start}
        self.hidden = written.difference(self.offsets)
        """Offsets that no consumer may ever return: of aborted records, and above the readable end."""

    def next(self, low: int, end: int) -> int:
        """The first visible offset from ``low`` on; without one, the greater of ``low`` and ``end``."""
        at = bisect_left(self.offsets, low)
        return self.offsets[at] if at < len(self.offsets) else max(low, end)

    def none_between(self, low: int, high: int) -> bool:
        return self.next(low, high) >= high


class Sync:
    """``odradek.Consumer`` in a scenario."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.consumer: Any = Consumer(settings)

    def call(self, name: str, *args: Any, **named: Any) -> Any:
        return getattr(self.consumer, name)(*args, **named)

    def records(self) -> tuple[Callable[[], Record], Callable[[], None]]:
        found = iter(self.consumer)
        return lambda: next(found), found.close


class Async(Sync):
    """``odradek.aio.Consumer`` in a scenario, with its own event loop and thread."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.consumer = self._run(self._make(settings))

    async def _make(self, settings: dict[str, Any]) -> aio.Consumer:
        return aio.Consumer(settings)

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    async def _call(self, name: str, *args: Any, **named: Any) -> Any:
        result = getattr(self.consumer, name)(*args, **named)
        return await result if asyncio.iscoroutine(result) else result

    def call(self, name: str, *args: Any, **named: Any) -> Any:
        result = self._run(self._call(name, *args, **named))
        if name == "close":
            self.loop.call_soon_threadsafe(self.loop.stop)
            self.thread.join()
            self.loop.close()
        return result

    def records(self) -> tuple[Callable[[], Record], Callable[[], None]]:
        found = self.consumer.__aiter__()

        async def step() -> Any:
            return await anext(found)

        return lambda: self._run(step()), lambda: self._run(found.aclose())


class Scenario:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.dice = dice = random.Random(seed)
        self.kinds = {
            name for name, share in (
                ("transactions", 0.4), ("retention", 0.3), ("truncation", 0.3), ("deletion", 0.12), ("followers", 0.3),
                ("breaks", 0.5), ("silence", 0.08), ("rows", 0.4), ("moves", 0.7), ("compaction", 0.3), ("far", 0.2),
            ) if dice.random() < share
        }  # fmt: skip
        self.committed = dice.random() < 0.5
        fetch = dice.choice(
            (10, 11, 12, 13, 99) if self.kinds & {"truncation", "deletion"} else (4, 6, 7, 11, 12, 13, 99)
        )
        topics = {"t": dice.randint(3, 4)} | ({"u": dice.randint(1, 2)} if dice.random() < 0.5 else {})
        self.versions = {1: fetch, 3: dice.choice((9, 12, 99)), 9: dice.choice((7, 99))}
        self.topics = topics
        self.all = [TopicPartition(name, index) for name, count in topics.items() for index in range(count)]
        self.settings: dict[str, Any] = {
            "group_id": "g", "enable_auto_commit": dice.random() < 0.4, "auto_commit_interval_ms": dice.choice((1, 20)),
            "auto_offset_reset": "earliest" if self.kinds & {"retention", "truncation", "deletion", "far"}
            else dice.choice(("earliest", "latest")),
            "isolation_level": "read_committed" if self.committed else "read_uncommitted",
            "max_poll_records": dice.choice((1, 3, 20, 500)),
            "fetch_max_bytes": dice.choice((1, 1_000, 50_000_000)),
            "max_partition_fetch_bytes": dice.choice((1, 300, 5_000, 1_000_000)),
            "buffer_memory": dice.choice((1, 2_000, 100_000, 64_000_000)),
            "fetch_max_wait_ms": dice.choice((0, 5, 30)), "retry_backoff_ms": dice.choice((0, 1, 5)),
            "retry_backoff_max_ms": 10, "request_timeout_ms": 250 if "silence" in self.kinds else 30_000,
            "client_rack": dice.choice(("r1", "r2")) if "followers" in self.kinds else "",
            "metadata_max_age_ms": dice.choice((30, 300_000)), "columns": dice.choice((COLUMNS, COLUMNS, FEW)),
        }  # fmt: skip
        self.is_async = dice.random() < 0.4
        self.readings: dict[TopicPartition, Reading] = {}
        self.commit_limit: dict[TopicPartition, float] = {}
        """The highest offset that the consumer may commit."""
        self.returned = 0
        self.deleted: dict[str, int] = {}
        self.earlier: dict[TopicPartition, list[OldLog]] = {tp: [] for tp in self.all}
        self.notes: list[str] = []

    # --- random events in the cluster, under its lock ---------------------------------------------------------

    def event(self) -> None:
        cluster, kinds = self.cluster, self.kinds
        happen = {self.append: 8, self.raise_high_watermark: 3, self.spread: 4, self.forget: 0.5}
        if "moves" in kinds:
            happen |= {self.move: 2, self.remove_leader: 0.4}
        if "truncation" in kinds:
            happen[self.truncate] = 1.5
        if "retention" in kinds:
            happen[self.retain] = 1
        if "compaction" in kinds:
            happen[self.compact] = 1
        if "followers" in kinds:
            happen |= {self.lag: 1, self.catch_up: 2}
        if "breaks" in kinds:
            happen |= {self.close_connections: 0.7, self.down: 0.7, self.up: 2}
        if "deletion" in kinds:
            happen |= {self.delete: 0.4, self.recreate_topics: 3}
        if "transactions" in kinds:
            happen |= {self.transact: 5, self.end_transactions: 3}
        with cluster.changed:
            cluster.dice.choices(list(happen), list(happen.values()))[0]()

    def pick(self) -> TopicPartition:
        return self.cluster.dice.choice([tp for tp in self.all if tp.topic in self.cluster.topics])

    def is_full(self, tp: TopicPartition) -> bool:
        return len(self.cluster.lead(tp).log.batches) > MOST_BATCHES

    def append(self) -> None:
        if not self.is_full(tp := self.pick()):
            self.cluster.append(tp)

    def transact(self) -> None:
        if not self.is_full(tp := self.pick()):
            self.cluster.append(tp, self.cluster.dice.choice((101, 102)))

    def end_transactions(self) -> None:
        self.cluster.end_transactions(self.pick(), self.cluster.dice.choice(((ABORT,), (DONE,), (ABORT, DONE))))

    def raise_high_watermark(self) -> None:
        self.cluster.raise_high_watermark(self.pick())

    def spread(self) -> None:
        self.cluster.spread(self.cluster.dice.choice((None, *NODES)))

    def forget(self) -> None:
        self.cluster.forget_sessions(self.cluster.dice.choice(NODES))

    def move(self) -> None:
        tp, dice = self.pick(), self.cluster.dice
        log = self.cluster.lead(tp).log
        self.cluster.move(tp, dice.choice(NODES), dice.choice(log.bounds(log.high_watermark, log.end)))
        if dice.random() < 0.6:
            self.spread()

    def remove_leader(self) -> None:
        self.remove_leader_of(self.pick())

    def truncate(self) -> None:
        tp, dice = self.pick(), self.cluster.dice
        lead = self.cluster.lead(tp)
        cut = dice.choice(lead.log.bounds(lead.log.start, lead.log.high_watermark)[-6:])
        self.notes.append(f"{tp} cut at {cut} after epoch {lead.epoch}")
        self.add_old_log(tp, cut)
        self.cluster.move(tp, dice.choice(NODES), cut)
        if dice.random() < 0.6:
            self.spread()

    def retain(self) -> None:
        self.cluster.retain(self.pick())

    def compact(self) -> None:
        self.cluster.compact(self.pick())

    def lag(self) -> None:
        self.cluster.lag(self.pick(), self.cluster.dice.choice(NODES))

    def catch_up(self) -> None:
        self.cluster.catch_up(self.pick())

    def close_connections(self) -> None:
        self.cluster.nodes[self.cluster.dice.choice(NODES)].close_connections()

    def down(self) -> None:
        if not any(node.is_down for node in self.cluster.nodes.values()):
            self.cluster.take_down(self.cluster.dice.choice(NODES))

    def up(self) -> None:
        for node in self.cluster.nodes.values():
            node.is_down = False

    def delete(self) -> None:
        if len(self.cluster.topics) < len(self.topics):
            return
        name = self.cluster.dice.choice(list(self.topics))
        if len(self.topics) == 1:
            name = "t"
        topic = self.cluster.topics[name]
        for index in range(len(topic.leads)):
            self.add_old_log(TopicPartition(name, index), None)
        if len(self.topics) > 1:
            del self.cluster.topics[name]
            self.deleted[name] = len(topic.leads)
        else:
            self.cluster.make(name, len(topic.leads))
        if self.cluster.dice.random() < 0.7:
            self.cluster.spread()
        self.notes.append(f"{name} deleted")

    def recreate_topics(self) -> None:
        for name, count in self.deleted.items():
            self.cluster.make(name, count)
            self.notes.append(f"{name} recreated")
        self.deleted.clear()

    def add_old_log(self, tp: TopicPartition, cut: int | None) -> None:
        """Adds the current log to the old ones: a log with other records replaces it."""
        old = OldLog(self.cluster.lead(tp), self.cluster.topics[tp.topic].topic_id, cut)
        self.earlier[tp].append(old)
        if tp in self.readings:
            self.readings[tp].old_logs.append(old)

    def old_logs(self, tp: TopicPartition) -> list[OldLog]:
        """The old logs that a broker still serves."""
        views = [node.view[tp.topic] for node in self.cluster.nodes.values() if tp.topic in node.view]
        served = [(view.topic_id, view.leads[tp.partition].epoch) for view in views]
        earlier = self.earlier[tp]
        for number, old in enumerate(earlier):
            if any(topic_id == old.topic_id and epoch <= old.lead.epoch for topic_id, epoch in served):
                return earlier[number:]
        return []

    def old_logs_since(self, tp: TopicPartition, found: Written) -> list[OldLog]:
        """The old logs, from the first one that may have had the record ``found``."""
        earlier = self.earlier[tp]
        past = [
            number
            for number, old in enumerate(earlier, 1)
            if (found.epoch > old.lead.epoch if found.topic_id == old.topic_id else old.cut is None)
        ]
        same = [number for number, old in enumerate(earlier) if old.topic_id == found.topic_id]
        return earlier[max([number for number in past if not same or number <= same[-1] + 1], default=0) :]

    # --- the model --------------------------------------------------------------------------------------------

    def stages(self, tp: TopicPartition, reading: Reading) -> Iterator[tuple[Lead, UUID, set[int], Visible, int]]:
        """The logs that the consumer may read from, older ones first, with the possible start offsets in each."""
        assert reading.at is not None
        starts = {reading.at} | ({0} if reading.may_be_out_of_range else set())
        topic = self.cluster.topics.get(tp.topic)
        now = topic.leads[tp.partition] if topic is not None else None
        for number, old in enumerate(reading.old_logs):
            retained = now.log.start if now is not None and old.cut is not None else 0
            retained = max(retained, old.lead.log.start)
            visible = Visible(old.lead.log, self.committed, retained)
            # A lagging broker may serve a deleted topic again after records of the new one were returned. A position
            # beyond the end of the old log is then reset.
            is_reset = old.cut is None and max(starts) > old.lead.log.end
            yield old.lead, old.topic_id, starts | {0} if is_reset else starts, visible, number
            # The consumer may have skipped aborted records of the old log that are visible here, because the truncation
            # removed the marker of their transaction.
            passed = {visible.next(start, old.lead.log.high_watermark) for start in starts}
            cut = {min(start, old.cut) for start in starts | passed} if old.cut is not None else {0}
            starts = cut | (starts | {0} if reading.is_without_epoch or old.cut is None else set())
        if now is not None and topic is not None:
            visible = Visible(now.log, self.committed, now.log.start)
            yield now, topic.topic_id, starts, visible, len(reading.old_logs)

    def written(self, tp: TopicPartition, record: Record, columns: tuple[str, ...]) -> Written:
        for found in self.cluster.history.get((tp, record.offset), ()):
            row = found.row if "key" in columns else Row(None, found.row.value, found.row.timestamp_ms, ())
            if row == (record.key, record.value, record.timestamp_ms, record.headers):
                return found
        raise AssertionError(f"{tp} offset {record.offset}: never written so: {str(record)[:90]} {str(record)[-150:]}")

    def see(self, tp: TopicPartition, records: list[Record], columns: tuple[str, ...] = COLUMNS) -> None:
        reading = self.readings[tp]
        stages = list(self.stages(tp, reading)) if reading.at is not None else []
        for record in records:
            self.returned += 1
            found = self.written(tp, record, columns)
            if reading.at is None:
                reading.place(record.offset, self.old_logs_since(tp, found))
                reading.returned(record.offset + 1)
                stages = list(self.stages(tp, reading))
                continue
            is_recreated = any(old.cut is None for old in reading.old_logs)
            for lead, topic_id, starts, visible, number in stages:
                earlier = reading.old_logs[:number]
                if topic_id != found.topic_id or found.epoch > lead.epoch:
                    continue
                if any(p.cut is not None and record.offset >= p.cut and found.epoch <= p.lead.epoch and
                       p.topic_id == found.topic_id for p in earlier):  # fmt: skip
                    continue
                if record.offset in visible.hidden:
                    continue
                is_after_deletion = any(old.cut is None for old in earlier)
                if is_after_deletion or any(
                    s <= record.offset and visible.none_between(s, record.offset) for s in starts
                ):
                    if not is_after_deletion:  # after a deletion a lagging broker may still serve the older topic
                        reading.old_logs = reading.old_logs[number:]
                    break
            else:
                self.wrong(
                    tp, reading, f"got record {record.offset} of epoch {found.epoch} (recreated: {is_recreated})"
                )
            reading.returned(record.offset + 1)
            stages = list(self.stages(tp, reading)) if number or len(stages) > 1 else [
                (stages[0][0], stages[0][1], {reading.at}, stages[0][3], 0)
            ]  # fmt: skip

    def wrong(self, tp: TopicPartition, reading: Reading, message: str) -> None:
        logs = [
            f"epoch {lead.epoch} leader {lead.leader} from {sorted(starts)}: log {lead.log.start} to "
            f"{lead.log.high_watermark} ({lead.log.end}), shows {visible.offsets[:5]}…{visible.offsets[-5:]}"
            for lead, _, starts, visible, _ in self.stages(tp, reading)
        ] if reading.at is not None else []  # fmt: skip
        raise AssertionError(
            f"seed {self.seed}: {tp} at {reading.at} "
            f"(may be out of range: {reading.may_be_out_of_range}, without epoch: {reading.is_without_epoch}): "
            f"{message}; {logs}; {self.notes[-12:]}; "
            f"{sorted(self.kinds)} {self.settings} {self.versions} async {self.is_async}"
        )

    def check_position(self, tp: TopicPartition, timeout_ms: int = 100) -> None:
        try:
            position = self.face.call("position", tp, timeout=timeout_ms / 1000)
        except RequestTimedOut:
            return
        with self.cluster.changed:
            reading = self.readings[tp]
            if reading.at is None:
                # A lagging broker may have learned of a truncation since the lookup. A committed offset may be beyond
                # the log end.
                far = any(position > log.high_watermark for log in self.cluster.logs(tp))
                reading.place(position, list(self.earlier[tp]), may_be_out_of_range=far or bool(self.earlier[tp]))
                return
            if any(old.cut is None for old in reading.old_logs):
                return
            for _, _, starts, visible, _ in self.stages(tp, reading):
                # The position may differ from the expected one if no visible record is between the two.
                if any(visible.none_between(min(s, position), max(s, position)) for s in starts):
                    return
            self.wrong(tp, reading, f"position {position}")

    def on_commit(self, tp: TopicPartition, offset: int) -> None:
        reading = self.readings.get(tp)
        most = self.commit_limit.get(tp, -1)
        if reading is not None:
            if reading.at is None or reading.may_be_out_of_range or any(old.cut is None for old in reading.old_logs):
                self.commit_limit[tp] = float("inf")
            else:
                most = self.commit_limit[tp] = max(most, reading.highest)
            if offset <= most or self.commit_limit[tp] == float("inf"):
                return
            if any(visible.none_between(int(most), offset) for _, _, _, visible, _ in self.stages(tp, reading)):
                return
        elif offset <= most:
            return
        self.cluster.wrongs.append(f"{tp}: committed {offset}, returned only up to {most}")

    # --- calls of the consumer --------------------------------------------------------------------------------

    def assign(self) -> None:
        chosen = set(self.dice.sample(self.all, self.dice.randint(1, len(self.all))))
        if self.dice.random() < 0.5:
            chosen |= set(self.readings)
        self.assign_these(chosen)

    def assign_these(self, chosen: set[TopicPartition]) -> None:
        with self.cluster.changed:
            for tp in set(self.readings) - chosen:
                removed = self.readings.pop(tp)
                self.commit_limit[tp] = (
                    float("inf") if removed.at is None else max(self.commit_limit.get(tp, -1), removed.highest)
                )
            for tp in chosen - set(self.readings):
                known = self.settings["auto_offset_reset"] == "earliest" and tp not in self.cluster.ever_committed
                known = known and not self.uses_group
                self.readings[tp] = Reading(0 if known else None, self.old_logs(tp))
                self.readings[tp].may_be_out_of_range = True
                if not known:
                    self.commit_limit[tp] = float("inf")
        self.face.call("assign", [TopicPartition(*tp) for tp in sorted(chosen)])

    def poll(self) -> None:
        polled = self.face.call("poll", self.dice.choice((0, 0, 0.002, 0.02)))
        self.check_polled(polled)

    def check_polled(self, polled: Any) -> None:
        assert polled.num_rows <= self.settings["max_poll_records"]
        with self.cluster.changed:
            for tp in polled:
                assert tp in self.readings, f"{tp} was not assigned"
                records = [record for record in polled.records() if record.topic_partition == tp]
                self.see(tp, records, self.settings["columns"])
        buffer, allowed = engine_of(self.face.consumer).fetcher.buffer, self.settings["buffer_memory"]
        assert buffer.size <= allowed + 3 * self.cluster.largest_batch, "the buffer is larger than allowed"
        assert buffer.reserved <= allowed, "the fetches in flight reserve more than allowed"

    def iterate(self) -> None:
        paused = self.face.call("paused")
        with self.cluster.changed:
            ready = [
                tp for tp, reading in self.readings.items() if tp not in paused and reading.at is not None
                and not reading.old_logs and not reading.may_be_out_of_range and tp.topic in self.cluster.topics
                and not Visible(self.cluster.lead(tp).log, self.committed, 0).none_between(reading.at, 1 << 60)
            ]  # fmt: skip
        if len(ready) < 1:
            return
        step, leave = self.face.records()
        ending, stalled = threading.Timer(1, self.end_wait), threading.Timer(40, self.face.consumer.wakeup)
        ending.start()
        stalled.start()
        last: Record | None = None
        for _ in range(self.dice.choice((1, 2, 5, 30))):
            with self.cluster.changed:
                reading = None if last is None else self.readings[last.topic_partition]
                left = [
                    tp for tp in ready if tp.topic in self.cluster.topics and not self.readings[tp].old_logs
                    and not Visible(self.cluster.lead(tp).log, self.committed, 0).none_between(
                        self.readings[tp].at or 0, 1 << 60)
                ]  # fmt: skip
            if not left:
                break
            last = step()
            with self.cluster.changed:
                self.see(last.topic_partition, [last])
            if self.dice.random() < 0.2:
                self.seek_one(last.topic_partition)
                last = None
        ending.cancel()
        stalled.cancel()
        if self.dice.random() < 0.7:
            leave()
        else:
            del step
        if last is not None:
            with self.cluster.changed:
                reading = self.readings[last.topic_partition]
                reading.at = last.offset  # until the caller asks for the next record, this one counts as not returned

    def end_wait(self) -> None:
        """Ends the wait of an iteration: partitions without a readable record get one. Records that were readable
        when the wait began may be truncated by now, or aborted."""
        with self.cluster.changed:
            self.recreate_topics()
            self.cluster.end_faults()
            for tp, reading in self.readings.items():
                log = self.cluster.lead(tp).log
                if Visible(log, self.committed, 0).none_between(reading.at or 0, 1 << 60):
                    self.cluster.append(tp)
            self.cluster.end_faults()

    def seek(self) -> None:
        if self.readings:
            self.seek_one(self.dice.choice(sorted(self.readings)))

    def seek_one(self, tp: TopicPartition) -> None:
        with self.cluster.changed:
            logs = self.cluster.logs(tp)
            if not logs:
                return
            sure = min(log.high_watermark for log in logs)
            most = max(sure, logs[0].end + 3) if "far" in self.kinds else sure
            offset = self.dice.randint(0, most)
            lead = next((topic.leads[tp.partition] for topic in [self.cluster.topics.get(tp.topic)] if topic), None)
            epoch = -1
            if lead is not None and self.dice.random() < 0.5 and offset <= sure:
                epoch = max([b.epoch for b in lead.log.batches if b.base < offset], default=-1)
            may_be_out_of_range = offset > sure or (
                len({id(log) for log in logs}) > 1 and bool(self.kinds & {"truncation", "deletion"})
            )
            may_be_out_of_range = may_be_out_of_range or bool(self.kinds & {"deletion"})
            self.readings[tp].place(offset, self.old_logs(tp), may_be_out_of_range=may_be_out_of_range)
        self.face.call("seek", tp, OffsetAndMetadata(offset, epoch) if epoch >= 0 else offset)

    def seek_to(self) -> None:
        if not self.readings:
            return
        chosen = self.dice.sample(sorted(self.readings), self.dice.randint(1, len(self.readings)))
        end = self.dice.random() < 0.5
        with self.cluster.changed:
            for tp in chosen:
                self.readings[tp].place(None if end else 0, self.old_logs(tp), may_be_out_of_range=not end)
        self.face.call("seek_to_end" if end else "seek_to_beginning", chosen)

    def pause(self) -> None:
        if self.readings:
            self.face.call("pause", self.dice.sample(sorted(self.readings), self.dice.randint(1, len(self.readings))))

    def resume(self) -> None:
        self.face.call("resume", list(self.readings))

    def ask_position(self) -> None:
        if self.readings:
            self.check_position(self.dice.choice(sorted(self.readings)))

    def commit(self) -> None:
        if self.dice.random() < 0.6:
            self.face.call("commit_async")
            return
        self.face.call("commit")

    # --- the scenario -----------------------------------------------------------------------------------------

    def run(self) -> None:
        with simulated_cluster(self.seed, self.topics, self.versions) as cluster:
            self.cluster = cluster
            cluster.codecs = self.dice.choice(((0,), (0, 1, 2, 3, 4), (self.dice.randint(1, 4),)))
            cluster.on_event, cluster.on_commit = self.event, self.on_commit
            limits = (self.settings[name] for name in ("fetch_max_bytes", "max_partition_fetch_bytes", "buffer_memory"))
            cluster.limits = tuple(limits)
            for _ in range(self.dice.choice((0, 10, 60))):
                self.event()
            cluster.chances = Chances(
                connection=0.02 if "breaks" in self.kinds else 0, silence=0.01 if "silence" in self.kinds else 0,
                row=0.04 if "rows" in self.kinds else 0, event=self.dice.choice((0.05, 0.3)),
                sloppy_preference=0.3,
            )  # fmt: skip
            self.uses_group = self.dice.random() < 0.7
            if not self.uses_group:
                self.settings |= {"enable_auto_commit": False}
                del self.settings["group_id"]
            self.face = (Async if self.is_async else Sync)(self.settings | {"bootstrap_servers": cluster.bootstrap})
            try:
                self.run_steps()
            finally:
                with cluster.changed:
                    self.recreate_topics()
                    cluster.end_faults()
                self.face.call("close", timeout_ms=5_000)
            assert cluster.wrongs == []

    def run_steps(self) -> None:
        self.assign()
        does = {
            self.poll: 20, self.event: 6, self.iterate: 2, self.seek: 1, self.seek_to: 0.6, self.pause: 0.7,
            self.resume: 1, self.ask_position: 2, self.assign: 0.5,
        }  # fmt: skip
        if self.uses_group:
            does[self.commit] = 1
        for act in self.dice.choices(list(does), list(does.values()), k=self.dice.choice((30, 60, 120))):
            act()
            assert self.cluster.wrongs == []
        self.finish()

    def finish(self) -> None:
        """Ends all faults. One partition may stay without a leader, and some stay paused: the others must not wait."""
        alone = self.dice.choice(sorted(self.readings)) if self.dice.random() < 0.3 else None
        with self.cluster.changed:
            self.recreate_topics()
            self.cluster.end_faults()
            if alone is not None:
                self.remove_leader_of(alone)
        for tp in sorted(self.readings):
            if self.dice.random() < 0.3:
                self.seek_one(tp)
        self.resume()
        paused = {tp for tp in self.readings if self.dice.random() < 0.2}
        self.read_to_the_end(paused)
        paused |= {alone} if alone is not None else set()
        if paused:
            with self.cluster.changed:
                self.cluster.end_faults()
            self.resume()
            self.read_to_the_end(set())
        for tp in self.readings:
            self.check_position(tp, 10_000)
        if self.uses_group:
            self.check_commit()

    def check_commit(self) -> None:
        for _ in range(5):  # a late older commit or a truncation may cause a difference at first
            before = {tp: self.face.call("position", tp) for tp in self.readings}
            self.face.call("commit")
            committed = {tp: self.cluster.commits.get(tp, (-1,))[0] for tp in self.readings}
            if committed == before:
                return
        raise AssertionError(f"seed {self.seed}: committed {committed}, the positions are {before}")

    def remove_leader_of(self, tp: TopicPartition) -> None:
        self.cluster.move(tp, -1)
        self.cluster.spread()

    def read_to_the_end(self, paused: set[TopicPartition]) -> None:
        idle = 0
        while left := [tp for tp in self.readings if tp not in paused and self.is_unread(tp)]:
            self.face.call("pause", sorted(paused))
            polled = self.face.call("poll", 0.05)
            self.check_polled(polled)
            idle = 0 if polled else idle + 1
            if idle > STALLED_POLLS:
                self.wrong(left[0], self.readings[left[0]], f"no more records come; unread {left}, paused {paused}")
            for tp in left:
                if self.readings[tp].at is None:
                    self.check_position(tp, 1_000)

    def is_unread(self, tp: TopicPartition) -> bool:
        with self.cluster.changed:
            reading = self.readings[tp]
            lead = self.cluster.lead(tp)
            if lead.leader < 0:
                return False
            if reading.at is None:
                return True
            *_, (_, _, starts, visible, _) = self.stages(tp, reading)
            if all(old.cut is not None for old in reading.old_logs):
                return not any(visible.none_between(start, 1 << 60) for start in starts)
        try:
            position = self.face.call("position", tp, timeout=1.0)
        except RequestTimedOut:
            return True
        return position > lead.log.end or not visible.none_between(position, 1 << 60)


def run_scenario(seed: int) -> Scenario:
    scenario = Scenario(seed)
    try:
        scenario.run()
    except BaseException as error:
        error.add_note(f"in scenario {seed}")
        raise
    return scenario


SCENARIOS = int(os.environ.get("ODRADEK_SCENARIOS", "2000"))


@pytest.mark.claim(96)
@pytest.mark.claim(18, part=True)
@pytest.mark.parametrize("quarter", range(4))
def test_records_come_complete_and_in_order_under_random_faults(quarter: int) -> None:
    scenarios = [run_scenario(seed) for seed in range(quarter * 6, quarter * 6 + 6)]
    assert sum(scenario.returned for scenario in scenarios) > 100


@pytest.mark.slow
def test_records_come_complete_and_in_order_in_many_more_scenarios() -> None:
    for seed in range(1_000, 1_000 + SCENARIOS):
        run_scenario(seed)
