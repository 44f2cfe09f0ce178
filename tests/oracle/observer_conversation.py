"""Conversations of followers of the metadata log with its leader: fetches, snapshots in parts, the described quorum.

The same scenario runs against Apache Kafka (``record_controller``) and against Odradek. A trace has the replies in a
form without values that differ between runs: offsets are named after their place in the log. No NoOp record is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol
from uuid import UUID

from controller_conversation import BROKER_REGISTRATION, FEATURES, listener, ranges

from odradek.batches.header import scan
from odradek.batches.rows import iter_records
from odradek.core.errors import ErrorCode

FETCH, DESCRIBE_QUORUM, FETCH_SNAPSHOT = 1, 55, 59
TOPIC, TOPIC_ID = "__cluster_metadata", UUID(int=1)
CONTROLLER = 100
QUICK_MS, WAIT_MS = 700, 1500
SETTINGS = {"metadata.max.idle.interval.ms": "0"}
SNAPSHOTS = SETTINGS | {"metadata.log.max.snapshot.interval.ms": "1"}
"""A snapshot is due with each record."""


class Connected(Protocol):
    """A blocking connection to the controller."""

    def send(self, api_key: int, version: int, message: Mapping[str, Any]) -> int: ...

    def receive(self, api_key: int, version: int, correlation_id: int) -> Any: ...

    def has_reply(self, within_s: float) -> bool: ...

    def call(self, api_key: int, version: int, message: Mapping[str, Any]) -> Any: ...


class Observation:
    """One scenario with one controller. ``connect`` returns a new connection; ``restart`` restarts the controller;
    ``pass_ms`` lets time pass; ``clock`` returns a time in ms."""

    def __init__(
        self,
        connect: Callable[[], Connected],
        restart: Callable[[], None],
        pass_ms: Callable[[int], None],
        clock: Callable[[], float],
        cluster_id: str,
    ) -> None:
        self.steps: list[dict[str, Any]] = []
        self.cluster_id = cluster_id
        self.pass_ms = pass_ms
        self._connect, self._restart, self._clock = connect, restart, clock
        self.epoch = self.end = 0
        self.ends: dict[int, int] = {}
        """Leader epoch → its end."""
        self.learn()
        for broker in (50, 51, 52):
            self.register(broker)
        self.settle()

    def learn(self) -> None:
        """Reads the whole log, up to a snapshot's end if there is one."""
        self.wire = self._connect()
        for _ in range(100):
            refused = self._fetched(self.message(leader_epoch=0, last_epoch=0))
            self.epoch = refused.current_leader.leader_epoch
            if refused.error_code is ErrorCode.fenced_leader_epoch and self.epoch > 0:
                break
            self.pass_ms(100)
        self.settle()

    def settle(self) -> None:
        """Waits until the log does not grow, and learns its end."""
        while True:
            before, last = self.end, self.epoch
            far = self._fetched(self.message(offset=1 << 40, last_epoch=last))
            self.end = far.diverging_epoch.end_offset
            if self.end == before and far.high_watermark == self.end:
                break
            self.pass_ms(300)
        self.ends = {}
        offset = 0
        while offset < self.end:
            part = self._fetched(self.message(offset=offset, last_epoch=min(self.ends, default=0)))
            if part.snapshot_id.epoch >= 0:
                return
            for _, header in scan(memoryview(bytes(part.records))):
                self.ends[header.leader_epoch] = offset = header.last_offset + 1

    def restart(self) -> None:
        self._restart()
        self.learn()

    def register(self, broker: int) -> None:
        """Writes a record: that of a broker. Its reply comes after the commit."""
        message = {
            "broker_id": broker,
            "cluster_id": self.cluster_id,
            "incarnation_id": UUID(int=broker),
            "listeners": [listener("PLAINTEXT")],
            "features": ranges(FEATURES),
            "rack": None,
            "is_migrating_zk_broker": False,
            "log_dirs": [UUID(int=broker << 64)],
            "previous_broker_epoch": -1,
        }
        reply = self._connect().call(BROKER_REGISTRATION, 4, message)
        assert reply.error_code is ErrorCode.none, reply

    # --- fetches ------------------------------------------------------------------------------------------------

    def message(
        self,
        *,
        offset: int = 0,
        leader_epoch: int | None = None,
        last_epoch: int | None = None,
        watermark: int = (1 << 63) - 1,
        wait_ms: int = 0,
        replica: int = -1,
        directory: UUID | None = None,
        version: int = 18,
        **changes: Any,
    ) -> dict[str, Any]:
        """A fetch. By default it names the present epochs and does not wait."""
        part = {
            "partition": 0,
            "current_leader_epoch": self.epoch if leader_epoch is None else leader_epoch,
            "fetch_offset": offset,
            "last_fetched_epoch": self.epoch if last_epoch is None else last_epoch,
            "log_start_offset": -1,
            "partition_max_bytes": 0,
            "replica_directory_id": directory,
            "high_watermark": watermark,
        } | changes.pop("part", {})
        if version < 17:
            del part["replica_directory_id"]
        if version < 18:
            del part["high_watermark"]
        if version < 12:
            del part["last_fetched_epoch"]
        if version < 9:
            del part["current_leader_epoch"]
        message = {
            "cluster_id": self.cluster_id,
            "replica_state": {"replica_id": replica, "replica_epoch": -1},
            "replica_id": replica,
            "max_wait": wait_ms,
            "min_bytes": 0,
            "max_bytes": 8 << 20,
            "isolation_level": 0,
            "session_id": 0,
            "session_epoch": -1,
            "topics": [{"topic_id": TOPIC_ID, "topic": TOPIC, "partitions": [part]}],
            "forgotten_topics_data": [],
            "rack_id": "",
        } | changes
        absent = {"cluster_id": 12, "replica_state": 15, "rack_id": 11}
        sent = {name: value for name, value in message.items() if absent.get(name, 0) <= version}
        if version >= 15:
            del sent["replica_id"]
        return sent

    def _fetched(self, message: dict[str, Any]) -> Any:
        return self.wire.call(FETCH, 18, message).responses[0].partitions[0]

    def fetch(self, what: str, *, version: int = 18, **asked: Any) -> None:
        """Adds the reply to a fetch, and whether it came at once."""
        start = self._clock()
        reply = self.wire.call(FETCH, version, self.message(version=version, **asked))
        self._add(what, self._shown(reply, asked.get("offset", 0), version), self._clock() - start)

    def fetch_during(self, what: str, work: Callable[[], None], **asked: Any) -> None:
        """Adds the reply to a fetch that waits until something else happens."""
        sent = self.wire.send(FETCH, 18, self.message(**asked))
        assert not self.wire.has_reply(QUICK_MS / 1000), "the fetch does not wait"
        work()
        start = self._clock()
        reply = self.wire.receive(FETCH, 18, sent)
        self._add(what, self._shown(reply, asked.get("offset", 0), 18), self._clock() - start)

    def _add(self, what: str, shown: dict[str, Any], took_ms: float) -> None:
        self.steps.append({"asked": what, "comes": "at once" if took_ms < QUICK_MS else "later"} | shown)

    def _shown(self, reply: Any, offset: int, version: int) -> dict[str, Any]:
        error = reply.error_code.name if version >= 7 else "-"
        shown: dict[str, Any] = {"error": error, "nodes": self._nodes(reply)}
        for topic in reply.responses:
            assert version < 13 or topic.topic_id == TOPIC_ID
            for part in topic.partitions:
                data = bytes(part.records or b"")
                bases = [(header.base_offset, header.last_offset) for _, header in scan(memoryview(data))]
                shown |= {
                    "partition error": part.error_code.name,
                    "high watermark": self._place(part.high_watermark),
                    "last stable offset": part.last_stable_offset,
                    "log start": part.log_start_offset,
                    "aborted": None if part.aborted_transactions is None else len(part.aborted_transactions),
                    "begins": bool(bases) and bases[0][0] <= offset <= bases[0][1],
                    "ends": self._place(bases[-1][1] + 1) if bases else "without records",
                    "session": reply.session_id,
                }
                if version >= 12:
                    leader, diverging, snapshot = part.current_leader, part.diverging_epoch, part.snapshot_id
                    shown |= {
                        "leader": [leader.leader_id, leader.leader_epoch - self.epoch],
                        "diverging": [self._epoch(diverging.epoch), self._place(diverging.end_offset)],
                        "snapshot": "a snapshot" if snapshot.epoch >= 0 and snapshot.end_offset > 0 else "none",
                    }
        return shown

    def _nodes(self, reply: Any) -> list[Any]:
        nodes = getattr(reply, "node_endpoints", ())
        return [[node.node_id, node.host, node.port > 0] for node in nodes]

    def _epoch(self, epoch: int) -> Any:
        return "none" if epoch < 0 else 0 if not epoch else f"present - {self.epoch - epoch}"

    def _place(self, offset: int) -> Any:
        if offset == self.end:
            return "end"
        named = [f"end of epoch - {self.epoch - epoch}" for epoch, end in self.ends.items() if end == offset]
        return offset if offset <= 0 else named[0] if named else "an offset"

    # --- snapshots ----------------------------------------------------------------------------------------------

    def make_snapshot(self) -> None:
        """Lets the controller write a snapshot, and learns its place."""
        for broker in range(1, 100):
            self.register(broker)
            self.pass_ms(500)
            found = self._fetched(self.message()).snapshot_id
            if found.epoch >= 0 and found.end_offset > 2:
                self.snapshot = {"end_offset": found.end_offset, "epoch": found.epoch}
                break
        self.settle()

    def snapshot_message(self, *, version: int = 1, leader_epoch: int | None = None, **changes: Any) -> dict[str, Any]:
        part = {
            "partition": 0,
            "current_leader_epoch": self.epoch if leader_epoch is None else leader_epoch,
            "snapshot_id": self.snapshot,
            "position": 0,
            "replica_directory_id": None,
        } | changes.pop("part", {})
        if not version:
            del part["replica_directory_id"]
        return {
            "cluster_id": self.cluster_id,
            "replica_id": 7,
            "max_bytes": 8 << 20,
            "topics": [{"name": TOPIC, "partitions": [part]}],
        } | changes

    def fetch_snapshot(self, what: str, *, version: int = 1, **asked: Any) -> bytes:
        """Adds the reply. Returns the bytes of the part."""
        reply = self.wire.call(FETCH_SNAPSHOT, version, self.snapshot_message(version=version, **asked))
        shown: dict[str, Any] = {"asked": what, "error": reply.error_code.name, "nodes": self._nodes(reply)}
        data = b""
        for topic in reply.topics:
            for part in topic.partitions:
                data = bytes(part.unaligned_records)
                snapshot = {"end_offset": part.snapshot_id.end_offset, "epoch": part.snapshot_id.epoch}
                shown |= {
                    "topic": topic.name,
                    "index": part.index,
                    "partition error": part.error_code.name,
                    "snapshot": "the asked one" if snapshot == self.snapshot else snapshot,
                    "leader": [part.current_leader.leader_id, self._epoch(part.current_leader.leader_epoch)],
                    "has size": part.size > 0,
                    "position": "the asked one"
                    if part.position == asked.get("part", {}).get("position", 0)
                    else part.position,
                    "whole": len(data) == part.size,
                    "bytes": "none"
                    if not data
                    else "as many as asked"
                    if len(data) == asked.get("max_bytes")
                    else "some",
                }
                self.size = part.size or getattr(self, "size", 0)
        self.steps.append(shown)
        return data

    def note_snapshot(self, data: bytes) -> None:
        """Adds what a whole snapshot has."""
        controls = [row.is_control for row in iter_records(data)]
        self.steps.append({"controls at the ends": controls[0] and controls[-1] and sum(controls) == 2})

    # --- the quorum ---------------------------------------------------------------------------------------------

    def describe(self, what: str, *, version: int = 2) -> None:
        """Adds the described quorum."""
        topics = [{"topic_name": TOPIC, "partitions": [{"partition_index": 0}]}]
        reply = self.wire.call(DESCRIBE_QUORUM, version, {"topics": topics})
        part = reply.topics[0].partitions[0]
        shown: dict[str, Any] = {
            "asked": what,
            "error": [reply.error_code.name, part.error_code.name],
            "leader": [part.leader_id, part.leader_epoch - self.epoch],
            "high watermark": self._place(part.high_watermark),
            "voters": [self._replica(row, version) for row in part.current_voters],
            "observers": sorted((self._replica(row, version) for row in part.observers), key=_key_of),
        }
        if version >= 2:
            shown["nodes"] = [[node.node_id, len(node.listeners)] for node in reply.nodes]
        self.steps.append(shown)

    def _replica(self, row: Any, version: int) -> list[Any]:
        shown = [row.replica_id, self._place(row.log_end_offset)]
        if version >= 1:
            fetched, caught_up = row.last_fetch_timestamp, row.last_caught_up_timestamp
            shown += ["fetched" if fetched > 0 else fetched, "caught up" if caught_up > 0 else caught_up]
        if version >= 2:
            shown.append(None if row.replica_directory_id is None else str(row.replica_directory_id))
        return shown


def _key_of(replica: list[Any]) -> tuple[int, str]:
    """The id and, if it is shown, the directory of a replica."""
    return replica[0], str(replica[-1])
