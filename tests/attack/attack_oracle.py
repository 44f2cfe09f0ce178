"""Decides about a table, a target topic and a group: what they may have after any attack, and what they must have."""

from __future__ import annotations

import copy
import json
import re
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
from attack_drivers import CommandEnd
from attack_records import Place, RecordBook, SentRecord

from odradek.client.admin import Admin
from odradek.core.ids import TopicPartition

Partition = tuple[str, int]
"""Topic, partition."""


class AttackFound(AssertionError):
    """The attacker has found a fault of the program."""


@dataclass
class Bounds:
    """How often each record may and must be in an output. ``seen``: how often each was there at the last look."""

    least: dict[int, int] = field(default_factory=dict)
    most: dict[int, int] = field(default_factory=dict)
    seen: Counter[int] = field(default_factory=Counter)
    replays: dict[str, bool] = field(default_factory=dict)
    """The replays that have begun, and whether they are done."""

    def excuse(self, records: Iterable[SentRecord]) -> None:
        """These records may come no more: they were deleted, or are skipped on purpose. Those that are there stay."""
        for record in records:
            self.least[record.id] = min(self.least.get(record.id, 1), self.seen[record.id])

    def repeat(self, records: Iterable[SentRecord]) -> None:
        """These records are added once more on purpose."""
        for record in records:
            self.allow(record)
            self.demand(record)

    def allow(self, record: SentRecord) -> None:
        self.most[record.id] = self.most.get(record.id, 1) + 1

    def demand(self, record: SentRecord) -> None:
        self.least[record.id] = self.least.get(record.id, 1) + 1

    def is_excused(self, record: SentRecord) -> bool:
        return self.least.get(record.id, 1) == 0

    def copy(self) -> Bounds:
        return copy.deepcopy(self)

    def partitions_of_ingest(self, book: RecordBook, committed: Collection[Partition]) -> set[tuple[int, str, int]]:
        """The partitions that ``ingest`` has surely begun to read, with the life of their topic: they have more rows
        than the replays can have added, or rows and a commit of a run (``committed``).

        A replay leaves no position. So ``ingest`` may begin later, behind deleted records, and no line has to say so.
        """
        ranges = [
            (topic, int(partition), range(*offsets))
            for replay in self.replays
            for topic, parts in json.loads(replay).items()
            for partition, offsets in parts.items()
        ]
        found = set()
        for number, count in self.seen.items():
            record = book.by_id[number]
            topic, partition, offset = record.place
            by_replays = sum((topic, partition) == (one, part) and offset in held for one, part, held in ranges)
            if count > by_replays or (topic, partition) in committed:
                found.add((record.life, topic, partition))
        return found


_LOSS = r"\blost\b|deleted|is missing|created again|diverges"


@dataclass
class LossWatch:
    """The records that were deleted before a table had them, though it had begun to read their partition. A line has to
    name the partition of each: the loss is never silent."""

    lost: dict[int, SentRecord] = field(default_factory=dict)

    def note(
        self, gone: Iterable[SentRecord], bounds: Bounds, book: RecordBook, committed: Collection[Partition] = ()
    ) -> None:
        """Notes records that are gone now. ``bounds``: before they are excused. ``committed``: the partitions of which
        a run has committed an offset."""
        begun = bounds.partitions_of_ingest(book, committed)
        for record in gone:
            is_due = record.is_shown and not bounds.seen[record.id] and not bounds.is_excused(record)
            if is_due and (record.life, *record.place[:2]) in begun:
                self.lost[record.id] = record

    def forget(self) -> None:
        """The attacker has changed what the table knows."""
        self.lost.clear()

    def read(self, end: CommandEnd) -> None:
        """Takes the losses that a command has named off the list."""
        lines = [line for line in end.err.splitlines() if re.search(_LOSS, line)]
        adopted = end.result if end.is_done and '"kept_as"' in end.out else {}
        named = {(one["topic"], one["partition"]) for one in adopted.get("deleted", ())}
        replaced = set(adopted.get("replaced", ()))
        self.lost = {
            one: record
            for one, record in self.lost.items()
            if record.place[:2] not in named
            and record.place[0] not in replaced
            and not any(_is_named(line, record) for line in lines)
        }

    def check(self, found: Counter[int], book: RecordBook) -> None:
        """Raises AttackFound for records that a complete table does not have and no line has named."""
        silent = [one for one in self.lost if not found[one]]
        self.lost.clear()
        if silent:
            raise AttackFound(
                f"{len(silent)} records were deleted before they were read, silently: {places(book, silent)}"
            )


def _is_named(line: str, record: SentRecord) -> bool:
    topic, partition, _ = record.place
    return f"{topic}-{partition}" in line or (topic in line and "created again" in line)


def check_counts(found: Counter[int], bounds: Bounds, book: RecordBook) -> None:
    """Checks what an output has now, whatever is running. Raises AttackFound."""
    aborted = [one for one in found if not book.by_id[one].is_shown]
    if aborted:
        raise AttackFound(f"rows of aborted transactions: {places(book, aborted)}")
    often = [one for one, count in found.items() if count > bounds.most.get(one, 1)]
    if often:
        raise AttackFound(f"{len(often)} records too often: {places(book, often)}, {found[often[0]]} times")
    gone = [one for one, count in bounds.seen.items() if found[one] < count]
    if gone:
        raise AttackFound(f"{len(gone)} rows disappeared: {places(book, gone)}")
    bounds.seen = Counter(found)


def check_complete(found: Counter[int], bounds: Bounds, book: RecordBook, topics: Iterable[str]) -> None:
    """Checks what an output has after a finished run. Raises AttackFound."""
    wanted = set(topics)
    missing = [
        one.id
        for one in book.by_id.values()
        if one.is_shown and one.place[0] in wanted and found[one.id] < bounds.least.get(one.id, 1)
    ]
    if missing:
        raise AttackFound(f"{len(missing)} records missing: {places(book, missing)}")


def places(book: RecordBook, numbers: Iterable[int]) -> str:
    """Names some records."""
    some = sorted((book.by_id[one].life, book.by_id[one].place) for one in numbers)
    shown = [f"{topic[-4:]}-{partition}@{offset} (life {life})" for life, (topic, partition, offset) in some]
    return ", ".join(shown[:3] + (["…"] if len(shown) > 4 else []) + shown[-1:])


def table_rows(output: Path, table_format: str, value_format: str, *, flat: bool) -> list[tuple[int, Place]]:
    """The rows of a table: the id in the value, and the place that the other columns name."""
    if table_format == "delta":
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        try:
            dataset = DeltaTable(output).to_pyarrow_dataset()
        except TableNotFoundError:
            return []
    else:
        files = [str(one) for one in output.rglob("*.parquet") if not _is_hidden(one, output)]
        if not files:
            return []
        dataset = ds.dataset(files, partitioning=ds.partitioning(flavor="hive"), partition_base_dir=str(output))
    column = "id" if flat else "value"
    rows = dataset.to_table(columns=["topic", "partition", "offset", column]).to_pydict()
    ids = [_id_of(value, value_format, flat) for value in rows[column]]
    return list(zip(ids, zip(rows["topic"], map(int, rows["partition"]), rows["offset"], strict=True), strict=True))


def counted(rows: Iterable[tuple[int, Place]], book: RecordBook) -> Counter[int]:
    """Counts rows by record. Raises AttackFound for a row that has the place of another record."""
    found: Counter[int] = Counter()
    for number, place in rows:
        record = book.by_id.get(number)
        if record is None or record.place != place:
            raise AttackFound(f"a row with id {number} at {place}, but that record is {record}")
        found[number] += 1
    return found


def _is_hidden(path: Path, root: Path) -> bool:
    return any(part.startswith(("_", ".")) for part in path.relative_to(root).parts)


def _id_of(value: Any, value_format: str, flat: bool) -> int:
    if flat:
        return int(value)
    if value_format == "raw":
        return int(json.loads(value)["id"])
    return int(value["id"])


class GroupWatch:
    """The offsets of a group as the attacker sees them. ``is_ours``: False while the attacker has moved the group, and
    no run has committed since."""

    def __init__(self, admin: Admin, group: str) -> None:
        self._admin, self.group = admin, group
        self._highest: dict[TopicPartition, int] = {}
        self.is_ours = True
        self.is_shared = False
        """Whether two tables commit to it."""

    def forget(self) -> None:
        """The attacker moves the group, or changes what it stands for."""
        self._highest, self.is_ours = {}, False

    def offsets(self) -> dict[TopicPartition, int]:
        return {tp: one.offset for tp, one in self._admin.list_group_offsets(self.group).items()}

    def committed(self) -> set[Partition]:
        """The partitions of which a run of the table has committed an offset, as far as that is sure."""
        if not self.is_ours or self.is_shared:
            return set()
        return {(tp.topic, tp.partition) for tp, offset in self.offsets().items() if offset > 0}

    def check(self, *, may_go_back: bool) -> dict[TopicPartition, int]:
        """Returns the offsets. Raises AttackFound if the group has gone back."""
        found = self.offsets()
        if not self.is_ours or self.is_shared:
            return found
        for tp, offset in found.items():
            if offset < self._highest.get(tp, 0) and not may_go_back:
                raise AttackFound(f"group {self.group} went back on {tp}: {self._highest[tp]} → {offset}")
            self._highest[tp] = offset
        return found

    def check_below(self, offsets: dict[TopicPartition, int], book: RecordBook, bounds: Bounds) -> None:
        """Raises AttackFound if ``offsets``, read before the output, are above it."""
        if not self.is_ours or self.is_shared:
            return
        above = [
            record.id
            for topic in book.topics.values()
            for record in topic.readable()
            if record.place[2] < offsets.get(TopicPartition(*record.place[:2]), 0)
            and not bounds.seen[record.id]
            and not bounds.is_excused(record)
        ]
        if above:
            raise AttackFound(f"group {self.group} stands above the output: {places(book, above)} are missing")


@dataclass(frozen=True)
class Refusal:
    """A line that ends a run, and the remedy that it names. ``cause``: the attacks that may lead to it."""

    pattern: str
    remedy: str
    causes: frozenset[str]

    def matches(self, line: str) -> bool:
        return re.search(self.pattern, line) is not None


_OLD = frozenset({"checkpoint", "notes", "table", "topic", "deleted", "delta-log"})
REFUSALS = (
    Refusal(r"another pipeline is writing to this table: .* or remove (\S+\.json)", "remove", frozenset({"run"})),
    Refusal(r"another pipeline is writing to ", "wait", frozenset({"run"})),
    Refusal(r"is a new table: give it a --checkpoint of its own", "new_checkpoint", _OLD),
    Refusal(r"odradek pipeline adopt", "adopt", _OLD),
    Refusal(r"another run has written .* to the checkpoint at the same time", "again", frozenset({"run"})),
    Refusal(r"failOnDataLoss", "loss", frozenset({"topic", "deleted"})),
    Refusal(r"[Rr]estore|new --output|another table|new --checkpoint", "undo", _OLD),
    Refusal(
        r"newer run has published|a newer run|run the command again|[Ss]tart .* again", "again", frozenset({"run"})
    ),
)


def refusal_of(line: str) -> Refusal | None:
    return next((one for one in REFUSALS if one.matches(line)), None)


def check_lines(end: CommandEnd, what: str) -> None:
    """Checks the form of a command's end: an error is one line. Raises AttackFound."""
    if "Traceback" in end.err or end.code == 70:
        raise AttackFound(f"{what}: a traceback: {end.err[-1500:]}")
    if end.is_done or end.was_ended:
        return
    if end.code not in (1, 2) or not end.error:
        raise AttackFound(f"{what}: exit code {end.code} without a line: {end.err[-1500:]}")
    if "\n" in end.error or "Python Proxy" in end.error or len(end.error) > 1200:
        raise AttackFound(f"{what}: the error is not one line, or hides its cause: {end.error}")


def shape_of(line: str) -> str:
    """A line without the names of this run, to count kinds of lines."""
    line = re.sub(r"file:\S+|/\S+/\S+", "PATH", line)
    line = re.sub(r"attacked-[0-9a-f]{10}", "TOPIC", line)
    line = re.sub(r"\b[0-9a-f]{8,}\b|\b[0-9a-f]{8}-[0-9a-f-]{27}\b", "ID", line)
    return re.sub(r"\d+", "N", line)
