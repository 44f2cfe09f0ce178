"""What an episode attacks: tables of ``ingest`` and ``replay``, and the target topic of ``transform``."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from attack_oracle import Bounds, GroupWatch, LossWatch, counted, table_rows
from attack_records import SCHEMAS, AttackedTopic, RecordBook, SentRecord, value_of
from transaction_runs import committed_records


@dataclass(frozen=True)
class AttackSetting:
    """The options of an episode that stay the same."""

    table_format: str
    value_format: str
    flat: bool
    partition_by: str
    fence: bool
    is_checkpoint_outside: bool
    locks: bool
    is_committed_only: bool
    """Whether records of aborted transactions are left out."""
    is_plain: bool
    """Whether the drivers run without Spark."""

    @classmethod
    def drawn(cls, rng: random.Random, *, is_plain: bool) -> AttackSetting:
        value_format = rng.choice(("raw", "raw", "raw", "avro", "raw" if is_plain else "json"))
        return cls(
            rng.choice(("parquet", "parquet", "delta")), value_format,
            value_format != "raw" and rng.random() < 0.3,
            rng.choice(("", "", "partition", "topic,partition")),
            rng.random() < 0.5, rng.random() < 0.4, rng.random() < 0.4, rng.random() < 0.5, is_plain,
        )  # fmt: skip


@dataclass
class AttackedTable:
    """A table of an episode, with its group."""

    output: Path
    checkpoint: Path | None
    setting: AttackSetting
    topics: list[AttackedTopic]
    group: GroupWatch
    bounds: Bounds = field(default_factory=Bounds)
    causes: set[str] = field(default_factory=set)
    """What was done to it since it was last complete."""
    undo: Callable[[], None] | None = None
    """Puts back what the attacker has replaced last."""
    undo_mark: frozenset[str] = frozenset()
    """The entries of the log when ``undo`` was noted: after another entry, it is too late."""
    copies: list[TableCopy] = field(default_factory=list)
    losses: LossWatch = field(default_factory=LossWatch)
    has_begun: bool = False
    """Whether a run of ``ingest`` has ended well."""
    more: list[str] = field(default_factory=list)
    """Further options of the next runs, which a line has named."""

    @property
    def name(self) -> str:
        return self.output.name

    @property
    def state(self) -> Path:
        return self.output / "_odradek"

    @property
    def checkpoint_folder(self) -> Path:
        return self.checkpoint or self.state / "checkpoint"

    @property
    def entries(self) -> frozenset[str]:
        folder = self.output / "_delta_log" if self.setting.table_format == "delta" else self.state / "batches"
        return frozenset(one.name for one in folder.glob("*.json")) if folder.exists() else frozenset()

    def ingest(self, bootstrap: str, rng: random.Random) -> list[str]:
        """The command of a run; what may change between two runs is drawn."""
        found = ["pipeline", "ingest", "-b", bootstrap, "--group", self.group.group, "--json", "--progress", "none"]
        found += ["--topics", ",".join(topic.name for topic in self.topics), *self._table_options(), *self.more]
        found += ["--writer", self._writer(rng)]
        found += rng.choice(([], ["--max-offsets", "60"], ["--max-offsets", "30"], ["--batch-size", "4000"]))
        found += rng.choice(([], [], ["--files-per-batch", "1"], ["--task-size", "300"]))
        return found

    def adopt(self, bootstrap: str) -> list[str]:
        found = ["pipeline", "adopt", "-b", bootstrap, "--group", self.group.group, "--output", str(self.output)]
        found += [] if self.checkpoint is None else ["--checkpoint", str(self.checkpoint)]
        return [*found, "--json", *(["--fence-commits"] if self.setting.fence else [])]

    def replay(self, bootstrap: str, ranges: str, rng: random.Random) -> list[str]:
        found = ["pipeline", "replay", "-b", bootstrap, "--offsets", ranges, "--json"]
        options = [one for one in self._table_options() if one != "--fence-commits"]
        if self.checkpoint is not None:
            at = options.index("--checkpoint")
            del options[at : at + 2]
        return [*found, *options, "--writer", self._writer(rng)]

    def _writer(self, rng: random.Random) -> str:
        drawn = rng.choice(("workers", "workers", "spark"))
        return "workers" if self.setting.is_plain else drawn

    def _table_options(self) -> list[str]:
        setting = self.setting
        found = ["--output", str(self.output), "--table-format", setting.table_format]
        found += ["--value-format", setting.value_format]
        if setting.value_format in SCHEMAS:
            found += ["--schema", SCHEMAS[setting.value_format]]
        found += ["--flat"] if setting.flat else []
        found += ["--partition-by", setting.partition_by] if setting.partition_by else []
        found += ["--checkpoint", str(self.checkpoint)] if self.checkpoint is not None else []
        found += ["--option", "kafka.isolation.level=read_committed"] if setting.is_committed_only else []
        return found + (["--fence-commits"] if setting.fence else [])

    def counts(self, book: RecordBook) -> Counter[int]:
        setting = self.setting
        rows = table_rows(self.output, setting.table_format, setting.value_format, flat=setting.flat)
        return counted(rows, book)

    def ids(self) -> frozenset[int]:
        """The records that a run which begins now has to bring to the table."""
        return frozenset(record.id for topic in self.topics for record in topic.readable())

    def folders(self) -> dict[str, Path]:
        """What an old copy may replace. The staging folder is a part of the table."""
        found = {
            "checkpoint": self.checkpoint_folder,
            "notes": self.state / "batches",
            "state": self.state,
            "delta-log": self.output / "_delta_log",
            "table": self.output,
        }
        return {name: path for name, path in found.items() if path.exists()}

    def note_undo(self, undo: Callable[[], None]) -> None:
        self.undo, self.undo_mark = undo, self.entries


@dataclass(frozen=True)
class TableCopy:
    """An old copy of a part of a table. ``bounds``: what was known of the table when it was made."""

    part: str
    content: Path
    bounds: Bounds


@dataclass
class AttackedTarget:
    """The target topic of a transform."""

    name: str
    checkpoint: Path
    topics: list[AttackedTopic]
    group: GroupWatch
    isolation_level: str
    bounds: Bounds = field(default_factory=Bounds)
    causes: set[str] = field(default_factory=set)

    def transform(self, bootstrap: str, rng: random.Random) -> list[str]:
        found = ["pipeline", "transform", "-b", bootstrap, "--group", self.group.group, "--to-topic", self.name]
        found += ["--topics", ",".join(topic.name for topic in self.topics), "--checkpoint", str(self.checkpoint)]
        found += ["--sql", "SELECT value FROM records", "--json", "--progress", "none"]
        found += ["--option", f"kafka.isolation.level={self.isolation_level}"]
        return found + rng.choice(([], ["--max-offsets", "60"]))

    def counts(self, bootstrap: str, book: RecordBook) -> Counter[int]:
        numbers = {value_of(number, book.value_format): number for number in book.by_id}
        return Counter(numbers[bytes(record.value)] for record in committed_records(bootstrap, self.name))

    def ids(self) -> frozenset[int]:
        return frozenset(record.id for topic in self.topics for record in topic.readable())


def replay_of(topic: AttackedTopic, rng: random.Random) -> tuple[str, list[SentRecord]] | None:
    """Draws a range of a topic; returns a replay's ``--offsets`` and its records."""
    partition = rng.randrange(topic.partitions)
    offsets = sorted(record.place[2] for record in topic.readable() if record.place[1] == partition)
    if len(offsets) < 2:
        return None
    first, last = sorted(rng.sample(offsets, 2))
    records = [one for one in topic.readable() if one.place[1] == partition and first <= one.place[2] < last]
    return json.dumps({topic.name: {str(partition): [first, last]}}), records


def replace_folder(path: Path, content: Path) -> None:
    """Puts a copy in the place of a folder."""
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(content, path, symlinks=True)
