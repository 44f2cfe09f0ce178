"""The demo's state between runs, in one small file that is replaced atomically.

``target``: the number of events that the topic should have. It is saved before the first event is published, so
the next run completes a killed run. ``pending``: a rewind that is decided and not finished. The next run finishes
it, unless that run is asked for another rewind. ``skipped``: the ranges that a rewind skipped on purpose. Only these
may be missing from the table.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from odradek.core.errors import ConfigError, StorageError
from odradek.demo.rewind import Move
from odradek.text.json_depth import parse_json
from odradek.text.output_file import sync_directory

_FILE = "demo.json"
_VERSION = 1

# Half-open: the first skipped offset, and the first offset after the skipped ones.
Range = tuple[int, int]


@dataclass(frozen=True)
class PendingRewind:
    """A rewind in the user's words, and its effect on each partition.

    ``batch``: the newest micro-batch in the query's checkpoint when the rewind was decided. A newer micro-batch
    means that the query has followed the rewind.
    """

    asked: str
    batch: int
    moves: tuple[Move, ...]


@dataclass
class DemoState:
    """The state of one data directory. ``brokers``: how many have its topic."""

    target: int
    pending: PendingRewind | None = None
    skipped: dict[int, list[Range]] = field(default_factory=dict)
    brokers: int = 1

    def skip(self, partition: int, start: int, stop: int) -> None:
        """Records that ``start … stop-1`` of a partition were skipped."""
        if stop > start:
            self.skipped.setdefault(partition, []).append((start, stop))

    def end_rewind(self, followed: bool) -> None:
        """Removes the pending rewind. If the query has followed it, records the ranges that it skipped."""
        if self.pending is not None and followed:
            for move in self.pending.moves:
                self.skip(move.partition, move.before, move.after)
        self.pending = None

    @classmethod
    def load(cls, data_dir: Path) -> DemoState | None:
        """Returns the state of this directory; None if no demo ran there. Raises ConfigError, StorageError."""
        path = data_dir / _FILE
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise StorageError(f"{path} cannot be read: {error}") from error
        try:
            stored = parse_json(text)
            if stored["version"] != _VERSION:
                raise ValueError(f"version {stored['version']}")
            skipped = {int(p): [(int(a), int(b)) for a, b in ranges] for p, ranges in stored["skipped"].items()}
            brokers = int(stored.get("brokers", 1))
            return cls(int(stored["target"]), _pending_from(stored.get("pending")), skipped, brokers)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{path} is not a state file of this demo ({error}); use another --data-dir") from error

    def save(self, data_dir: Path) -> None:
        """Replaces the file; after a crash it has the old state or the new one. Raises StorageError."""
        path = data_dir / _FILE
        new = path.with_suffix(".new")
        skipped = {str(partition): ranges for partition, ranges in sorted(self.skipped.items()) if ranges}
        stored = {"version": _VERSION, "target": self.target, "skipped": skipped}
        if self.brokers > 1:
            stored["brokers"] = self.brokers
        if self.pending is not None:
            stored["pending"] = asdict(self.pending)
        text = json.dumps(stored) + "\n"
        try:
            with new.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            new.replace(path)
            sync_directory(data_dir)
        except OSError as error:
            raise StorageError(f"{path} cannot be written: {error}") from error


def _pending_from(stored: Any) -> PendingRewind | None:
    """Returns the stored pending rewind. Raises TypeError, KeyError, ValueError."""
    if stored is None:
        return None
    names = ("partition", "before", "wanted", "after")
    moves = tuple(Move(*(int(move[name]) for name in names)) for move in stored["moves"])
    return PendingRewind(str(stored["asked"]), int(stored["batch"]), moves)
