"""What the other files of a data directory say about a log, and the report of what contradicts.

Checkpoints and snapshots never decide which records are in a log. They are witnesses: if the log ends before the end
that they know, records are lost. One witness can be wrong, because its file is damaged or an older copy. So:

* After a clean stop, the recovery point, the high watermark and the newest snapshot of the producers have the end of
  the log. A lower end is *proven* if two of them say so, or if none of them has the log's present end.
* After a crash, a lower end than the recovery point is proven: the records below it were synced. A later snapshot is
  no proof, because after a power loss it can be on the disk before the records.
* The indexes of a segment whose log file is missing or shorter, the first leader epoch, and the names of segments and
  snapshots say which offsets a log had.

A proven loss takes a guarded log (of an internal topic) offline until a person decides; nothing is changed. Any other
log goes on without the records, and the caller begins a new leader epoch.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from odradek.core.counts import span
from odradek.core.errors import StorageError
from odradek.storage.disk import checkpoints
from odradek.storage.segments.salvage import GoodBatch
from odradek.storage.segments.segment import INDEX_SUFFIX, LOG_SUFFIX, Segment, file_name

_log = logging.getLogger("odradek.storage")


class Witnesses(NamedTuple):
    """What the checkpoints of the data directory know about a log.

    ``high_watermark`` is None unless the last stop was clean. ``is_guarded``: a proven loss takes the log offline.
    """

    clean: bool = False
    recovery_point: int = 0
    log_start_offset: int | None = None
    high_watermark: int | None = None
    is_guarded: bool = False


class LostRecords(StorageError):
    """A guarded log has lost records. The message says which."""


class LostRange(NamedTuple):
    """Lost offsets [``first``, ``following``); None: the end is not known. ``is_open``: maybe later ones, too."""

    first: int
    following: int | None
    is_open: bool = False

    def __str__(self) -> str:
        first, following = self.first, self.following
        if following is None:
            return f"records from offset {first} on are lost"
        if self.is_open:
            noun, after = ("record", "it") if following - first == 1 else ("records", "them")
            return f"the {noun} at {span(first, following)} and any records after {after} are lost"
        if following - first == 1:
            return f"the record at offset {first} is lost"
        return f"the records at {span(first, following)} are lost"


class Report:
    """The contradictions of one log. Each one is one line with level ERROR, or raises LostRecords."""

    def __init__(self, directory: Path, known: Witnesses) -> None:
        self.directory = directory
        self.known = known
        self.has_lost = False
        """Whether records are lost."""

    def lose(self, what: str, lost: LostRange, *, is_proven: bool, kept: str = "") -> None:
        """Reports lost records. Raises LostRecords if the loss is proven and the log is guarded."""
        name, data = self.directory.name, self.directory.parent
        if is_proven and self.known.is_guarded:
            raise LostRecords(
                f"{what}: {lost}. Nothing was changed. Stop the broker; then restore the files from a copy, or go on "
                f"without these records: `odradek log accept --data-dir {data} {name}`"
            )
        self.has_lost = True
        _log.error(
            "%s: %s: %s%s. The partition goes on without them, with a new leader epoch. To get them back, stop the "
            "broker and restore the partition's files from a copy",
            name, what, lost, f" (their bytes are kept in {kept})" if kept else "",
        )  # fmt: skip

    def contradict(self, what: str) -> None:
        """Reports a file that is wrong, although no record is lost."""
        _log.error("%s: %s. No record is lost", self.directory.name, what)


def expected_end(known: Witnesses, snapshots: Sequence[int]) -> int | None:
    """Returns the end of the log after a clean stop, if at least two witnesses have it."""
    if not known.clean:
        return None
    claims = [known.recovery_point, known.high_watermark, snapshots[-1] if snapshots else None]
    return next((claim for claim in claims if claim is not None and claims.count(claim) > 1), None)


def check_end(
    report: Report, end: int, snapshots: Sequence[int], orphans: Mapping[int, str], *, tail: str = ""
) -> None:
    """Reports records that the log has lost at its end. ``tail``: what is wrong with the last segment after a crash."""
    known = report.known
    claims = {
        f"{checkpoints.RECOVERY_POINT} has {known.recovery_point}": known.recovery_point,
        f"the newest snapshot of its producers is at {snapshots[-1] if snapshots else 0}": max(snapshots, default=0),
    }
    if known.high_watermark is not None:
        claims[f"{checkpoints.HIGH_WATERMARK} has {known.high_watermark}"] = known.high_watermark
    later = {text: claim for text, claim in claims.items() if claim > end}
    behind = {base: name for base, name in orphans.items() if base >= end}
    if not later and not behind:
        if tail and not known.clean:
            what = f"the last segment {file_name(end, LOG_SUFFIX)} {tail}"
            report.lose(what, LostRange(end, None), is_proven=False)
        return
    texts = [*later, *(f"{name} has no {file_name(base, LOG_SUFFIX)}" for base, name in behind.items())]
    what = f"the log ends at offset {end}, but {', and '.join(texts)}"
    if known.clean and len(later) == 1 and not behind and end in claims.values():
        report.contradict(f"{what}. The other witnesses agree with the log, so this one is damaged or of another log")
        return
    is_proven = known.clean or known.recovery_point > end
    following = max([*later.values(), *(base + 1 for base in behind)])
    # After a crash, the witnesses only know what was synced. The log may have had more records.
    report.lose(what, LostRange(end, following if later else None, not known.clean), is_proven=is_proven)


def check_start(report: Report, first: int, start: int, epoch_start: int | None, orphans: Mapping[int, str]) -> None:
    """Reports records that the log has lost at its start.

    ``first`` is the base offset of the first segment, ``start`` the noted log start, ``epoch_start`` the start of the
    first leader epoch. Retention raises the start of the first epoch before it removes a segment.
    """
    known = report.known
    if epoch_start is not None and max(start, epoch_start) < first:
        missing = max(start, epoch_start)
        what = f"the log starts at offset {first}, but its first leader epoch starts at {epoch_start}"
        if missing in orphans:
            what = f"{orphans[missing]} has no {file_name(missing, LOG_SUFFIX)}"
        report.lose(what, LostRange(missing, first), is_proven=known.clean or missing in orphans)
    elif epoch_start is not None and first <= start < epoch_start:
        report.contradict(
            f"{checkpoints.LOG_START} has {start}, but the first leader epoch starts at {epoch_start}. Records below "
            f"offset {epoch_start} were deleted, and they may be there again"
        )


def check_gaps(
    report: Report,
    segments: Sequence[Segment],
    claims: Mapping[int, int],
    orphans: Mapping[int, str],
    *,
    is_compacted: bool,
    known_gaps: Sequence[tuple[int, int]],
) -> list[tuple[int, int]]:
    """Reports lost offsets between segments and returns them.

    A compacted log may have gaps between its segments. So there a gap counts only if the names of files, or the
    indexes of the segment before it (``claims``: the ends by base offset), say that it had records.
    """
    gaps = []
    for segment, following in pairwise(segments):
        end, base = segment.next_offset, following.base_offset
        if end >= base or any(first <= end and base <= last for first, last in known_gaps):
            continue
        orphan = next((name for at, name in orphans.items() if end <= at < base), None)
        claimed = end < claims.get(segment.base_offset, 0) <= base
        if orphan is not None:
            what = f"{orphan} has no log file"
        elif claimed or not is_compacted:
            what = (
                f"{file_name(segment.base_offset, LOG_SUFFIX)} ends at offset {end}, before the next segment at {base}"
            )
        else:
            continue
        gaps.append((end, base))
        report.lose(what, LostRange(end, base), is_proven=orphan is not None or claimed or report.known.clean)
    return gaps


def orphaned_indexes(names: Iterable[str], suffixes: tuple[str, ...]) -> dict[int, str]:
    """Returns an index file of each segment without a log file, by the base offset."""
    names = set(names)
    orphans: dict[int, str] = {}
    for name in sorted(names):
        stem = name.split(".")[0]
        is_orphan = name.endswith(suffixes) and stem.isdigit() and stem + LOG_SUFFIX not in names
        if is_orphan and (int(stem) not in orphans or name.endswith(INDEX_SUFFIX)):
            orphans[int(stem)] = name
    return orphans


def mends(mended: Sequence[GoodBatch]) -> str:
    """Describes batches that got their base offset back."""
    offsets = ", ".join(str(one.header.base_offset) for one in mended[:5])
    return f"the base offset of {len(mended)} batches was wrong; they have their offsets again: {offsets}"
