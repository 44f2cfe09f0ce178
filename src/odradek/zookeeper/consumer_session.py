"""One consumer of a group in ZooKeeper: its registration, the partitions that it owns, and its commits.

The znodes are those of Kafka's consumers up to 1.1. So such a consumer and one of this module never own a partition at
the same time. The owner of a partition creates its owner znode, which is ephemeral.

A commit is one transaction. Its conditions: the registration of this session exists (if the consumer owns partitions),
and each offset still has the version that this consumer has seen last. So a commit of an expired session changes
nothing, and of two writers the second one fails. If the reply to a commit is lost, the next commit reads whether the
offsets were stored.
"""

from __future__ import annotations

import json
import socket
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence

from odradek.core.ids import TopicPartition
from odradek.zookeeper.connection import (
    Check,
    Create,
    Delete,
    Operation,
    SetData,
    Znode,
    ZooKeeperConnection,
)
from odradek.zookeeper.errors import InvalidOffset, OffsetsChanged, ZnodeChanged, ZooKeeperUnreachable
from odradek.zookeeper.layout import GroupPartition
from odradek.zookeeper.store import OffsetChange, OffsetStore, StoredOffset, StoredOffsets

_ATTEMPTS = 10
"""The largest number of attempts. An attempt fails if another program changes a znode between read and write."""


class ConsumerSession:
    """The registration, the partitions and the commits of one consumer. It goes on after its session has expired.

    The methods block and raise the errors of ZooKeeperConnection. One thread at a time may use an instance."""

    def __init__(self, connection: ZooKeeperConnection, group: str) -> None:
        self.connection = connection
        self.group = group
        self.owned: frozenset[TopicPartition] = frozenset()
        self._store = OffsetStore(connection)
        self._session = 0
        self._consumer_id = ""
        self._topics: frozenset[str] = frozenset()
        self._seen: dict[TopicPartition, StoredOffset | None] = {}
        self._possible: dict[TopicPartition, set[int]] = {}
        """The offsets of commits whose reply was lost. If the version in ZooKeeper is one above that in ``_seen``, the
        stored value can be one of these."""

    # --- owners -----------------------------------------------------------------------------------------------

    def take_ownership(self, partitions: Sequence[TopicPartition], topics: Iterable[str]) -> dict[TopicPartition, str]:
        """Registers this consumer and makes it the owner of all partitions, or of none, in one transaction.

        Returns the other owners by partition; empty after a success."""
        wanted = frozenset(topics) | {tp.topic for tp in partitions}
        failure: ZnodeChanged | None = None
        for _ in range(_ATTEMPTS):
            self._begin_session()
            owners = self._owners(partitions)
            if others := {tp: _text(one) for tp, one in owners.items() if not self._is_mine(one)}:
                return others
            missing = [tp for tp in partitions if tp not in owners]
            registration = self._registration(wanted)
            operations = [*registration, *(Create(self._owner_path(tp), self._thread, True) for tp in missing)]
            try:
                self._commit_with_parents(operations)
            except ZnodeChanged as error:
                failure = error
                self.connection.sync()  # the connected server may lack the change
                continue
            self._topics = wanted
            self.owned |= frozenset(partitions)
            return {}
        assert failure is not None
        raise failure

    def release(self, partitions: Iterable[TopicPartition]) -> None:
        """Deletes the partitions' owner znodes that belong to this session.

        These can be more than ``owned``: the reply to the request that created them may be lost."""
        given_up = list(partitions)
        self._forget(given_up)
        for _ in range(_ATTEMPTS):
            mine = {tp: one for tp, one in self._owners(given_up).items() if self._is_mine(one)}
            try:
                self.connection.commit([Delete(one.path, one.version) for one in mine.values()])
            except ZnodeChanged:
                continue
            self.owned -= frozenset(given_up)
            return

    def _begin_session(self) -> None:
        """Gives this consumer a new id if the session is new. The ephemeral znodes of the previous session are gone."""
        session = self.connection.session_id
        if session == self._session:
            return
        self._session = session
        self._forget(list(self._seen))
        self.owned, self._topics = frozenset(), frozenset()
        moment = f"{socket.gethostname()}-{round(time.time() * 1000)}-{uuid.uuid4().hex[:8]}"
        self._consumer_id = f"{self.group}_{moment}"

    @property
    def _id_path(self) -> str:
        return f"/consumers/{self.group}/ids/{self._consumer_id}"

    @property
    def _thread(self) -> bytes:
        return f"{self._consumer_id}-0".encode()

    def _owner_path(self, tp: TopicPartition) -> str:
        return f"/consumers/{self.group}/owners/{tp.topic}/{tp.partition}"

    def _is_mine(self, znode: Znode) -> bool:
        return self._session != 0 and znode.owner == self._session

    def _owners(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Znode]:
        znodes = self.connection.get_many([self._owner_path(tp) for tp in partitions])
        return {tp: znode for tp, znode in zip(partitions, znodes, strict=True) if znode is not None}

    def _registration(self, topics: frozenset[str]) -> list[Operation]:
        """Returns the operations that register this consumer with a subscription, or change its subscription."""
        subscription = dict.fromkeys(sorted(topics), 1)
        made = {"version": 1, "subscription": subscription, "pattern": "static"}
        data = json.dumps(made | {"timestamp": str(round(time.time() * 1000))}, separators=(",", ":")).encode()
        known = self.connection.get(self._id_path)
        if known is None:
            return [Create(self._id_path, data, True)]
        return [] if topics == self._topics else [SetData(self._id_path, data, known.version)]

    def _commit_with_parents(self, operations: Sequence[Operation]) -> None:
        created = [one.path for one in operations if isinstance(one, Create)]
        self.connection.commit([*self._store.missing_parents(created), *operations])

    # --- offsets ----------------------------------------------------------------------------------------------

    def read(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Returns the stored offsets. The next commit fails if another writer has changed a znode since this read.

        Raises InvalidOffset."""
        stored = self._read(partitions)
        for tp in partitions:
            self._saw(tp, stored.offsets.get(tp))
        return stored.next_offsets()

    def committed(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Returns the stored offsets. Later commits do not depend on this read. Raises InvalidOffset."""
        return self._read(partitions).next_offsets()

    def _read(self, partitions: Sequence[TopicPartition]) -> StoredOffsets:
        self.connection.sync()
        stored = self._store.read_partitions(self.group, partitions)
        for one in stored.invalid:
            raise InvalidOffset(
                f"{one.path} is no offset at which a consumer can resume: {one.reason}: look at it, then set it or "
                "delete the topic's offsets (odradek zookeeper delete)"
            )
        return stored

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Stores all offsets in one transaction, or none.

        Raises OffsetsChanged with the partitions whose offsets another writer has changed or that another consumer
        owns; with all owned partitions if the session has expired. After ZooKeeperUnreachable the outcome is unknown.
        The next commit of these partitions finds it out."""
        failure: ZnodeChanged | None = None
        for _ in range(_ATTEMPTS):
            self._check_session()
            changes = self._changes(offsets)
            try:
                self.connection.commit(self._operations(changes))
            except ZnodeChanged as error:
                self._take_changes(changes)
                failure = error
                continue
            except ZooKeeperUnreachable:
                for change in changes:
                    self._possible.setdefault(change.group_partition.tp, set()).add(change.offset)
                raise
            for change in changes:
                self._saw(change.group_partition.tp, self._after(change))
            return
        assert failure is not None
        raise failure

    def _check_session(self) -> None:
        if self.owned and self.connection.session_id != self._session:
            raise OffsetsChanged(
                self.owned, f"the session of {self._consumer_id} has expired: others may own the partitions"
            )
        self._begin_session()

    def _changes(self, offsets: Mapping[TopicPartition, int]) -> list[OffsetChange]:
        unseen = [tp for tp in offsets if tp not in self._seen]
        if unseen:
            self.read(unseen)
        return [OffsetChange(GroupPartition(self.group, tp), offset, self._seen[tp]) for tp, offset in offsets.items()]

    def _operations(self, changes: Sequence[OffsetChange]) -> list[Operation]:
        """Returns the operations of a commit.

        For a partition that this consumer does not own, the transaction creates the owner znode and deletes it again.
        So the transaction fails if another consumer owns the partition."""
        unowned = [
            self._owner_path(change.group_partition.tp)
            for change in changes
            if change.group_partition.tp not in self.owned
        ]
        temporary: list[Operation] = [Create(path, self._thread, True) for path in unowned]
        return [
            *([Check(self._id_path, -1)] if self.owned else []),
            *self._store.missing_parents(unowned),
            *temporary,
            *self._store.operations(changes),
            *(Delete(path) for path in unowned),
        ]

    def _take_changes(self, changes: Sequence[OffsetChange]) -> None:
        """Reads why a transaction was refused.

        Returns if the caller can try again. For example, an earlier commit of this consumer, whose reply was lost, is
        the reason: its offsets are now in ``_seen``. Raises OffsetsChanged if another writer or owner is the reason, or
        if the session has expired."""
        self.connection.sync()  # the connected server may lack the change
        if self.owned and not self.connection.exists(self._id_path):
            raise OffsetsChanged(
                self.owned, f"{self._id_path} is gone, because the session has expired: others may own the partitions"
            )
        places = [change.group_partition.tp for change in changes]
        reasons = {
            tp: f"{self._owner_path(tp)} belongs to {_text(one)}"
            for tp, one in self._owners(places).items()
            if not self._is_mine(one)
        }
        stored = self._store.read_partitions(self.group, places)
        invalid = {one.path: one for one in stored.invalid}
        for change in changes:
            tp, before, now = change.group_partition.tp, change.before, stored.offsets.get(change.group_partition.tp)
            path = self._store.layout.path(self.group, tp)
            if path not in invalid and _version(now) == _version(before):
                continue
            if now is not None and _version(now) == _version(before) + 1 and now.offset in self._possible.get(tp, ()):
                self._saw(tp, now)
                continue
            reasons.setdefault(tp, f"{path} was changed by another writer" + (f" to {now.offset}" if now else ""))
        if reasons:
            self._forget(tp for tp in reasons if tp not in self.owned)
            raise OffsetsChanged(frozenset(reasons), "; ".join(reasons[tp] for tp in sorted(reasons)))

    def _after(self, change: OffsetChange) -> StoredOffset:
        """Returns the stored offset after a successful transaction, without a read."""
        path = self._store.layout.path(*change.group_partition)
        return StoredOffset(change.offset, path, _version(change.before) + 1, 0, b"%d" % change.offset)

    def _saw(self, tp: TopicPartition, stored: StoredOffset | None) -> None:
        self._seen[tp] = stored
        self._possible.pop(tp, None)

    def _forget(self, partitions: Iterable[TopicPartition]) -> None:
        for tp in partitions:
            self._seen.pop(tp, None)
            self._possible.pop(tp, None)


def _version(stored: StoredOffset | None) -> int:
    return -1 if stored is None else stored.version


def _text(znode: Znode) -> str:
    return (znode.data or b"").decode(errors="replace") or "an unnamed consumer"
