"""Commits of a caller that waits, on its own thread, while the I/O of the coordinator's connection is lent."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import NamedTuple

from odradek.client.group.commits import Offsets, commit_failure, commit_request
from odradek.core.ids import TopicPartition
from odradek.net.connection import BrokerConnection
from odradek.net.direct_exchange import IoOwner, Unanswered
from odradek.wire import frames, schemas
from odradek.wire.api_keys import OFFSET_COMMIT
from odradek.wire.offset_commit_frames import CommitTemplate
from odradek.wire.schemas import Kind

_MOST_PARTITIONS = 100
"""A larger commit is packed and read on the loop: its bytes take longer than the switches between threads."""


class Identity(NamedTuple):
    """The identity of a member in its commits. ``generation`` is the member epoch under ``group_protocol=consumer``."""

    generation: int = -1
    member_id: str = ""
    instance_id: str | None = None


@dataclass(slots=True)
class BegunCommit:
    """A commit that a caller has begun. ``reply`` and ``task`` are set if it was sent and the loop reads the reply."""

    offsets: Offsets
    sent_as: Identity
    connection: BrokerConnection
    version: int
    reply: asyncio.Future[memoryview] | None = None
    task: asyncio.Task[None] | None = None


class _Plan:
    """The requests of a member for the same partitions, and the reply when all is well."""

    def __init__(self, group_id: str, client_id: str, offsets: Offsets, sent_as: Identity, version: int) -> None:
        generation, member_id, instance_id = sent_as
        message = commit_request(group_id, offsets, generation=generation, member_id=member_id, instance_id=instance_id)
        topics = message["topics"]
        assert isinstance(topics, list)
        self.order = [
            TopicPartition(one["name"], row["partition_index"]) for one in topics for row in one["partitions"]
        ]
        self.head_bytes = len(frames.encode_request(OFFSET_COMMIT, version, 0, client_id, b""))
        """The size of a request's length and header."""
        self.template = CommitTemplate(frames.encode_request(OFFSET_COMMIT, version, 0, client_id, message))
        rows = [
            {
                "name": one["name"],
                "partitions": [
                    {"partition_index": row["partition_index"], "error_code": 0} for row in one["partitions"]
                ],
            }
            for one in topics
        ]
        body = schemas.encode(OFFSET_COMMIT, version, Kind.RESPONSE, {"throttle_time": 0, "topics": rows})
        self.reply = frames.reply_head(OFFSET_COMMIT, version, 0)[4:] + body

    def pack(self, correlation_id: int, offsets: Offsets) -> bytes:
        chosen = [offsets[tp] for tp in self.order]
        return self.template.pack(correlation_id, [one.offset for one in chosen], [one.leader_epoch for one in chosen])


class DirectCommits:
    """The commits of one consumer on the thread of their caller. ``lent`` is set on the loop."""

    def __init__(self, group_id: str, client_id: str) -> None:
        self._group_id, self._client_id = group_id, client_id
        self.is_wanted = False
        """Whether callers wait on threads of their own, as with ``odradek.Consumer``."""
        self.lent: BrokerConnection | None = None
        self._known: tuple[object, _Plan | None] = (None, None)
        """The last plan with its key. One attribute, since the loop and a caller use it at the same time."""

    def lend(self, connection: BrokerConnection) -> None:
        """Lends the connection after a commit that a caller has waited for. Runs on the loop."""
        if self.is_wanted:
            connection.lend()
            self.lent = connection

    @property
    def is_possible(self) -> bool:
        """Whether the connection is lent at this moment. Thread-safe."""
        lent = self.lent
        return lent is not None and lent.direct is not None and lent.direct.owner is IoOwner.LENT

    def begin(self, offsets: Offsets, sent_as: Identity, ceiling: int) -> BegunCommit | None:
        """Returns a commit for ``send``; None if the loop has to make it. Thread-safe."""
        lent = self.lent
        if lent is None or not 0 < len(offsets) <= _MOST_PARTITIONS:
            return None
        return BegunCommit(offsets, sent_as, lent, lent.version(OFFSET_COMMIT, ceiling))

    def _plan(self, offsets: Offsets, sent_as: Identity, version: int) -> _Plan:
        key = (sent_as, version, *[(tp, one.metadata) for tp, one in offsets.items()])
        known, plan = self._known
        if plan is None or key != known:
            plan = _Plan(self._group_id, self._client_id, offsets, sent_as, version)
            self._known = (key, plan)
        return plan

    def packed(self, offsets: Offsets, sent_as: Identity, version: int) -> tuple[bytes, bytes] | None:
        """Returns the message of a commit, and the reply without its correlation id if all is well. None for a commit
        of many partitions."""
        if not 0 < len(offsets) <= _MOST_PARTITIONS:
            return None
        plan = self._plan(offsets, sent_as, version)
        return plan.pack(0, offsets)[plan.head_bytes :], plan.reply

    def send(self, commit: BegunCommit, unanswered: Unanswered) -> bool | None:
        """Makes a commit, on the thread of the caller. Returns as ``DirectExchange.exchange``."""
        direct = commit.connection.direct
        if direct is None:
            return None
        offsets = commit.offsets
        plan = self._plan(offsets, commit.sent_as, commit.version)

        def accept(reply: memoryview) -> bool:
            return reply[4:] == plan.reply or _is_success(commit, reply)

        return direct.exchange(OFFSET_COMMIT, lambda number: plan.pack(number, offsets), accept, unanswered)


def _is_success(commit: BegunCommit, reply: memoryview) -> bool:
    """Returns whether a reply with its topics in another order has no error."""
    try:
        message = frames.decode_reply(OFFSET_COMMIT, commit.version, bytes(reply))[1]
    except ValueError:
        return False
    failure = commit_failure(message, instance_id=None, still_member=True)
    return failure is None and not getattr(message, "throttle_time", None)
