"""What a broker may have after a damage of its data directory: the rules for ``support/damaged_directories``.

Each missing record has to be in a range of offsets that a line names as lost, or that a reader is refused. No record
that is there may be in a range that a line names. Nothing else may have changed. After a refusal no file has changed.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from odradek.codecs.offsets_topic import offset_key
from odradek.core.ids import METADATA_TOPIC, OFFSETS_TOPIC, TRANSACTION_TOPIC
from odradek.storage.epochs import FILE_NAME as EPOCHS
from support.damaged_directories import Damage, Golden, Row, State, accept, files_of, observe

END = 1 << 62
_LOST = (
    re.compile(r"the records at offsets (?P<first>\d+) to \d+ and any records after them are lost"),
    re.compile(r"the records at offsets (?P<first>\d+) to (?P<last>\d+) are lost"),
    re.compile(r"the record at offset (?P<first>\d+) is lost"),
    re.compile(r"records from offset (?P<first>\d+) on are lost"),
    re.compile(r"invalid bytes from offset (?P<first>\d+) on were removed"),
)
_COMPACTED = ("table-", "__")


def named_ranges(lines: list[str], partition: str) -> list[tuple[int, int]]:
    """Returns the offsets, as first and following one, that lines about a partition name as lost."""
    found = []
    for line in lines:
        if not re.search(rf"(^|[/ ]){re.escape(partition)}($|[/: ])", line):
            continue
        for pattern in _LOST:
            for match in pattern.finditer(line):
                first = int(match["first"])
                if match[0].startswith(("records from", "invalid bytes")) or "after them" in match[0]:
                    found.append((first, END))
                else:
                    found.append((first, int(match.groupdict().get("last") or first) + 1))
    return found


def _outside(rows: set[Row], ranges: list[tuple[int, int]]) -> list[int]:
    return sorted(row[0] for row in rows if not any(first <= row[0] < end for first, end in ranges))


def _short(offsets: list[int]) -> str:
    return f"{len(offsets)} of {offsets[0]} to {offsets[-1]}"


def _inside(rows: set[Row], ranges: list[tuple[int, int]]) -> list[int]:
    return sorted(row[0] for row in rows if any(first <= row[0] < end for first, end in ranges))


def faults(damage: Damage, expected: State, found: State) -> Iterator[str]:
    """Yields each record, commit or transactional id that is gone, or came back, against the rules."""
    for partition in {name for name, _ in expected.records}:
        if partition in found.offline:
            if partition != damage.partition:
                yield f"{partition} is offline: {found.offline[partition]}"
            continue
        yield from _faults_of_records(damage, expected, found, partition)
    yield from _faults_of_state(expected, found)


def _faults_of_records(damage: Damage, expected: State, found: State, partition: str) -> Iterator[str]:
    named = named_ranges(found.lines, partition)
    refused = [(first, end) for first, end, _ in found.unreadable.get(partition, ())]
    if (named or refused) and partition != damage.partition:
        yield f"{partition} is said to have lost {named}, a reader is refused {refused}"
    for committed in (False, True):
        there = expected.records[partition, committed]
        now = found.records.get((partition, committed), set())
        missing, more = there - now, now - there
        if partition.startswith(TRANSACTION_TOPIC) and named:  # the coordinator ends a transaction again
            more = {row for row in more if row[0] < min(first for first, _ in named)}
        ranges = named + refused
        if committed and named:  # a lost marker leaves its transaction open
            ranges.append((found.stable[partition], END))
        if _is_unsynced_end(damage, there, missing):
            continue
        if outside := _outside(missing, ranges):
            yield f"{partition}, {committed=}: {_short(outside)} are missing, and the lines name {named}, {refused}"
        if wrong := _inside(now & there, named):
            yield f"{partition}: {_short(wrong)} are there, but a line says that they are lost: {named}"
        if more and not _may_come_back(damage, found, partition):
            yield f"{partition}, committed={committed}: {_short(sorted(row[0] for row in more))} came back"


def _is_unsynced_end(damage: Damage, there: set[Row], missing: set[Row]) -> bool:
    """Returns whether only the end of the last segment is gone, exactly at a batch, after a crash.

    Nothing else knows these records: the same bytes are there if the broker is killed before it has written them.
    """
    offsets = {row[0] for row in missing}
    is_end = bool(offsets) and min(offsets) > max((row[0] for row in there - missing), default=-1)
    return is_end and damage.is_unsynced and damage.kind in ("emptied", "halved", "older", "older segment")


def _may_come_back(damage: Damage, found: State, partition: str) -> bool:
    """Returns whether records that were removed may be there again.

    An older copy of a compacted segment has records that a cleaning has removed since. Deleted records come back if
    the checkpoint of their start is lost, or with an older copy of the log, and a line says so.
    """
    if partition != damage.partition and partition.startswith(_COMPACTED):
        return False
    if damage.kind.startswith("older") and partition.startswith(_COMPACTED):
        return True
    is_start = damage.kind == "older directory" or damage.file.endswith(("log-start-offset-checkpoint", EPOCHS))
    names = ("log-start-offset-checkpoint", f"/{partition} ends at", f"{partition}: ")
    return is_start and partition.startswith("trimmed-") and any(name in line for line in found.lines for name in names)


def _faults_of_state(expected: State, found: State) -> Iterator[str]:
    """Yields partitions whose commits or transactional ids are not those of their records."""
    for partition in expected.commits:
        if partition not in found.offline and not found.unreadable.get(partition):
            rows = sorted(found.records[partition, True], key=lambda row: row[0])
            commits = {key or b"": value or b"" for _, key, value in rows}
            now = found.commits.get(partition)
            wanted = {key for key, value in commits.items() if value and key[:2] == b"\x00\x01"}
            if now is None or {offset_key(*key) for key in now} != wanted:
                yield f"{partition}: the groups do not have the commits of the records"
            elif any(int.from_bytes(commits[offset_key(*key)][2:10], "big") != offset for key, offset in now.items()):
                yield f"{partition}: the groups have other offsets than the records"
        elif not _is_named(found, partition):
            yield f"{partition}: commits are gone, and no line names it"
    for partition in expected.transactional_ids:
        if partition not in found.offline and not found.unreadable.get(partition):
            rows = sorted(found.records[partition, True], key=lambda row: row[0])
            values = {key or b"": value for _, key, value in rows}
            wanted_ids = {key[4:].decode() for key, value in values.items() if value is not None}
            if found.transactional_ids.get(partition) != wanted_ids:
                yield f"{partition}: the transactional ids are not those of the records"
        elif not _is_named(found, partition):
            yield f"{partition}: transactional ids are gone, and no line names it"


def _is_named(found: State, partition: str) -> bool:
    return partition in found.offline or any(partition in line for line in found.lines)


Files = dict[str, tuple[int, int]]
"""Size and time of change of each file of a directory."""


def _files_in(path: Path) -> Files:
    found = ((name, (path / name).stat()) for name in files_of(path))
    return {name: (status.st_size, status.st_mtime_ns) for name, status in found}


def _faults_of_refusal(damage: Damage, found: State, before: Files, path: Path) -> Iterator[str]:
    names = [damage.file.split("/")[-1], damage.partition or damage.file]
    if damage.kind == "older directory" and not damage.partition:
        names.append(METADATA_TOPIC)
    if not any(name in found.refusal for name in names):
        yield f"the refusal does not name {damage.file}: {found.refusal}"
    if "\n" in found.refusal:
        yield f"the refusal has more than one line: {found.refusal}"
    after = _files_in(path)
    if changed := [name for name, status in before.items() if after.get(name) != status]:
        yield f"the refused start has changed {changed}"


def _faults_at(path: Path, damage: Damage, expected: State) -> Iterator[str]:
    directories = {one.name for one in path.iterdir() if one.is_dir()}
    before = _files_in(path)
    found = observe(path)
    if gone := directories - {one.name for one in path.iterdir() if one.is_dir()}:
        yield f"directories are gone: {gone}"
    if found.refusal:
        yield from _faults_of_refusal(damage, found, before, path)
        return
    yield from faults(damage, expected, found)
    if guarded := [name for name in found.offline if name.startswith((OFFSETS_TOPIC, TRANSACTION_TOPIC))]:
        accept(path, guarded)
        accepted = observe(path)
        accepted.lines += found.offline.values()
        accepted.lines += [f"{name}: {text}" for name, text in found.offline.items()]
        yield from (f"after the acceptance, {fault}" for fault in faults(damage, expected, accepted))


def check(golden: Golden, source: Path, damages: list[Damage], tmp_path: Path) -> Iterator[str]:
    """Makes each damage in a copy of ``source``. Yields what is against the rules."""
    expected = observe(Path(shutil.copytree(source, tmp_path / "whole")))
    shutil.rmtree(tmp_path / "whole")
    assert not expected.lines, expected.lines
    assert not expected.offline
    assert not expected.unreadable
    for number, damage in enumerate(damages):
        damage = damage.in_state(source, is_killed=source == golden.killed)
        path = Path(shutil.copytree(source, tmp_path / "damaged"))
        if damage.apply(path, golden.older):
            yield from (f"{number} {source.name} {damage}: {fault}" for fault in _faults_at(path, damage, expected))
        shutil.rmtree(path)
