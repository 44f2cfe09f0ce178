"""The offsets of groups in ZooKeeper: reads that also list invalid znodes, and conditional writes in transactions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from odradek.core.ids import TopicPartition
from odradek.zookeeper.connection import Create, Delete, Operation, SetData, Znode, ZooKeeperConnection
from odradek.zookeeper.errors import ZnodeChanged, ZooKeeperUnreachable
from odradek.zookeeper.layout import KAFKA_LAYOUT, GroupPartition, OffsetLayout

_ATTEMPTS = 5


class StoredOffset(NamedTuple):
    """The next offset of a partition, and the path, version, time of change and value of its znode."""

    offset: int
    path: str
    version: int
    modified_ms: int
    data: bytes


class InvalidZnode(NamedTuple):
    """A znode that does not have the valid offset, registration or owner that its path stands for.

    ``data`` is None if the znode has no data or was not read."""

    path: str
    reason: str
    data: bytes | None = None
    version: int = -1


class StoredOffsets(NamedTuple):
    """The offsets of a group in ZooKeeper, and the invalid znodes at paths of offsets."""

    group: str
    offsets: dict[TopicPartition, StoredOffset]
    invalid: tuple[InvalidZnode, ...] = ()

    def next_offsets(self) -> dict[TopicPartition, int]:
        """Returns the offsets alone."""
        return {tp: stored.offset for tp, stored in self.offsets.items()}


class OffsetChange(NamedTuple):
    """A new offset of a partition. ``before``: the offset that was read; None if there was none."""

    group_partition: GroupPartition
    offset: int
    before: StoredOffset | None


class OffsetStore:
    """The offsets of groups in one layout. All methods raise the errors of ZooKeeperConnection."""

    def __init__(self, connection: ZooKeeperConnection, layout: OffsetLayout = KAFKA_LAYOUT) -> None:
        self.connection = connection
        self.layout = layout

    def groups(self) -> list[str]:
        """Returns the names of all groups, in ZooKeeper's order; with Kafka's layout, also groups without offsets."""
        if self.layout.group is not None:
            return [self.layout.group]
        segments = self.layout.segments
        depth = next(i for i, segment in enumerate(segments) if "{group}" in segment)
        walk = self._walk(segments[: depth + 1], {})
        return list(dict.fromkeys(names["group"] for _, names in walk.matches))

    def read(self, group: str, topics: Iterable[str] | None = None) -> StoredOffsets:
        """Returns the offsets of a group for these topics (None: for all topics), in ZooKeeper's order of paths.

        A group that does not exist has no offsets."""
        wanted = None if topics is None else set(topics)
        self.connection.sync()
        walk = self._walk(self.layout.segments, {"group": group})
        invalid = [InvalidZnode(path, reason) for path, reason in walk.others]
        partitions: dict[str, TopicPartition] = {}
        for path, _ in walk.matches:
            found_at = self.layout.group_partition(path)
            if isinstance(found_at, str):
                invalid.append(InvalidZnode(path, found_at))
            elif found_at.group == group:
                partitions[path] = found_at.tp
        offsets = {}
        for path, znode in zip(partitions, self.connection.get_many(list(partitions)), strict=True):
            if znode is None:
                if "{" not in self.layout.segments[-1]:  # otherwise it was listed, and deleted since
                    invalid.append(InvalidZnode(path, "it does not exist"))
                continue
            offset = self.layout.offset(znode.data)
            if isinstance(offset, str):
                invalid.append(InvalidZnode(znode.path, offset, znode.data, znode.version))
            else:
                offsets[partitions[znode.path]] = _stored_offset(znode, offset)
        if wanted is not None:
            offsets = {tp: stored for tp, stored in offsets.items() if tp.topic in wanted}
            invalid = [one for one in invalid if self._may_be_of(one.path, wanted)]
        return StoredOffsets(group, offsets, tuple(invalid))

    def read_partitions(self, group: str, partitions: Sequence[TopicPartition]) -> StoredOffsets:
        """Returns the offsets of these partitions. Reads their paths and lists no others."""
        paths = [self.layout.path(group, tp) for tp in partitions]
        offsets, invalid = {}, []
        for tp, znode in zip(partitions, self.connection.get_many(paths), strict=True):
            if znode is None:
                continue
            offset = self.layout.offset(znode.data)
            if isinstance(offset, str):
                invalid.append(InvalidZnode(znode.path, offset, znode.data, znode.version))
            else:
                offsets[tp] = _stored_offset(znode, offset)
        return StoredOffsets(group, offsets, tuple(invalid))

    def write(self, changes: Sequence[OffsetChange]) -> None:
        """Writes all offsets in one transaction if every znode is still as it was read; otherwise writes none.

        If the reply is lost, this method reads whether the offsets were written; if not, it repeats the transaction.
        Raises ZnodeChanged if another writer has changed a znode, ConfigError for a name that no path can hold. Raises
        ZooKeeperUnreachable if the last attempt has no reply, or if a znode was changed after a lost reply."""
        if not changes:
            return
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                self.connection.commit(self.operations(changes))
                return
            except ZnodeChanged:
                # An earlier attempt may take effect after ``_outcome`` has read the znodes.
                if attempt > 1 and self._outcome(changes) == "written":
                    return
                raise
            except ZooKeeperUnreachable:
                outcome = self._outcome(changes)
                if outcome == "written":
                    return
                if outcome == "changed" or attempt == _ATTEMPTS:
                    raise

    def delete(self, group: str, topics: Sequence[str] | None = None) -> list[str]:
        """Deletes the offsets of a group, or only those of ``topics``, in one transaction. Returns the deleted paths.

        With Kafka's layout this includes the parents: the group's whole tree, or with ``topics`` the trees of the
        topics below ``offsets`` and ``owners``. With another layout the parents stay."""
        if not self.layout.is_kafkas:
            paths = [stored.path for stored in self.read(group, topics).offsets.values()]
        else:
            root = f"/consumers/{group}"
            roots = (
                [root] if topics is None else [f"{root}/{kind}/{t}" for t in topics for kind in ("offsets", "owners")]
            )
            paths = [path for one in roots for path in self._subtree(one)]
        self.connection.commit([Delete(path) for path in paths])
        return paths

    def _subtree(self, root: str) -> list[str]:
        """Returns the paths of a znode and of all znodes below it, children before parents."""
        levels = [[root]] if self.connection.exists(root) else []
        while levels and levels[-1]:
            children = zip(levels[-1], self.connection.children_of(levels[-1]), strict=True)
            levels.append([f"{path}/{name}" for path, names in children for name in names or ()])
        return [path for level in reversed(levels) for path in level]

    def missing_parents(self, paths: Iterable[str]) -> list[Operation]:
        """Returns the operations that create the missing parents of paths, the upper ones first."""
        parents = list(dict.fromkeys(parent for path in paths for parent in _parents(path)))
        known = self.connection.get_many(parents)
        return [Create(path) for path, znode in zip(parents, known, strict=True) if znode is None]

    def operations(self, changes: Sequence[OffsetChange]) -> list[Operation]:
        """Returns the operations of a transaction that makes these changes."""
        paths = [self.layout.path(*change.group_partition) for change in changes]
        made = self.missing_parents(path for path, change in zip(paths, changes, strict=True) if change.before is None)
        for path, change in zip(paths, changes, strict=True):
            before = change.before
            data = self.layout.data(change.offset, before.data if before else None)
            made.append(SetData(path, data, before.version) if before else Create(path, data))
        return made

    def _outcome(self, changes: Sequence[OffsetChange]) -> str:
        """Returns the outcome of a transaction whose reply was lost.

        ``written``: all znodes have its offsets. ``not``: all znodes are as before. ``changed``: another writer has
        changed a znode."""
        znodes = self.connection.get_many([self.layout.path(*change.group_partition) for change in changes])
        if all(_is_after(self.layout, znode, change) for znode, change in zip(znodes, changes, strict=True)):
            return "written"
        is_before = all(
            (znode is None) if change.before is None else (znode is not None and znode.version == change.before.version)
            for znode, change in zip(znodes, changes, strict=True)
        )
        return "not" if is_before else "changed"

    def _may_be_of(self, path: str, topics: set[str]) -> bool:
        """Returns whether the path of an invalid znode can belong to these topics."""
        for segment, part in zip(self.layout.segments, path.split("/")[1:], strict=False):
            match = self.layout.matcher(segment).fullmatch(part) if "{topic}" in segment else None
            if match is not None:
                return match["topic"] in topics
        return True

    def _walk(self, segments: Sequence[str], given: Mapping[str, str]) -> _WalkResult:
        """Lists the paths that match the parts of a template, level by level.

        ``given``: names that replace their placeholders."""
        level: list[tuple[str, dict[str, str]]] = [("", dict(given))]
        others: list[tuple[str, str]] = []
        for segment in segments:
            names = [name for name in ("group", "topic", "partition") if f"{{{name}}}" in segment]
            if not set(names) - given.keys():
                filled = segment.format_map(given) if names else segment
                level = [(f"{path}/{filled}", known) for path, known in level]
                continue
            matcher = self.layout.matcher(segment)
            following = []
            listed = self.connection.children_of([path or "/" for path, _ in level])
            for (path, known), children in zip(level, listed, strict=True):
                for child in children or ():
                    match = matcher.fullmatch(child)
                    if match is None:
                        others.append((f"{path}/{child}", f"it does not match {self.layout.template}"))
                    elif all(known.get(name, value) == value for name, value in match.groupdict().items()):
                        following.append((f"{path}/{child}", known | match.groupdict()))
            level = following
        return _WalkResult(level, others)


class _WalkResult(NamedTuple):
    matches: list[tuple[str, dict[str, str]]]
    others: list[tuple[str, str]]


def _parents(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:n]) for n in range(2, len(parts))]


def _stored_offset(znode: Znode, offset: int) -> StoredOffset:
    return StoredOffset(offset, znode.path, znode.version, znode.modified_ms, znode.data or b"")


def _is_after(layout: OffsetLayout, znode: Znode | None, change: OffsetChange) -> bool:
    """Returns whether a znode has the data and the version that a transaction with this change gives it."""
    if znode is None or layout.offset(znode.data) != change.offset:
        return False
    return znode.version == (0 if change.before is None else change.before.version + 1)
