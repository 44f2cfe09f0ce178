"""The fast path of OffsetCommit for clients that commit the same partitions again and again, as consumers do.

The frame of such a commit differs from an earlier frame only in correlation id, offsets and leader epochs. The broker
does not parse it again: the equal bytes are the key of its commit plan (groups/offsets/commit_plan). Consecutive frames
of one plan on a connection are handled together. Replies and records are the same as on the general path (router, k08).
The general path serves the first commits of a kind, unusual commits, and commits that name unknown partitions.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from odradek.broker.handlers import k08_offset_commit
from odradek.core.access.acl import Operation, Resource
from odradek.core.ids import is_longer
from odradek.groups.messages import OffsetCommitReply
from odradek.groups.offsets.commit_plan import COMMITTED, CommitPlan, PlannedCommits
from odradek.wire import schemas
from odradek.wire.api_keys import OFFSET_COMMIT
from odradek.wire.frames import read_request_head, reply_head
from odradek.wire.offset_commit_frames import MAX_FRAME_BYTES, CommitOffsets, ConstantBytes, Layout, positions_in
from odradek.wire.schemas import Kind

if TYPE_CHECKING:
    from odradek.broker.handlers.api import BrokerServices, Client
    from odradek.broker.metadata.authorizer import Authorizer
    from odradek.security.principal import Principal

MAX_PLAN_BYTES = 10 << 20
"""The largest size of the new plans in bytes. The old plans have the same limit."""
MAX_LAYOUT_BYTES = 4 << 20
USES_PER_PLAN = 4
"""At the limit, the new plans become the old plans if they were used this number of times on average."""
REFUSALS_PER_PLAN = 20
"""At the limit, the new plans also become the old plans if, for each new plan, this number of plans was refused. The
members that used the new plans may have left."""
MAX_SEEN = 10_000
"""The largest number of hashes of frames that arrived once. The same number of older hashes is kept, too."""
MAX_LAYOUTS_PER_LENGTH = 8
MAX_CLIENTS_PER_PLAN = 8
COMMITS_PER_LOOK = 32
"""The number of commits that are read between two readings of the clock."""
_PLAN_BYTES, _PARTITION_BYTES, _COPIES_OF_FRAME = 2800, 270, 4  # measured memory of a plan

Send = Callable[[list[bytes]], None]
Key = tuple[bytes, ConstantBytes]


class PlanEntry(NamedTuple):
    """A plan, the parsed commit from which it was made, and the constant bytes of its reply.

    ``shard`` is the group's partition of the offsets topic, and ``shards`` the number of partitions of this topic when
    the plan was made.
    """

    shard: int
    shards: int | None
    plan: CommitPlan
    commit: k08_offset_commit.CommitRequest
    version: int
    most_bytes: int
    bytes_kept: int
    reply_start: bytes  # of a reply without errors: the bytes before the correlation id
    reply_rest: bytes  # and the bytes after it
    granted: dict[tuple[Principal, str], int]
    """Principal and host of clients that may make these commits → the version of the ACLs that allow it."""


class CommitAsker(NamedTuple):
    """The client of a commit, in a question to the authorizer."""

    principal: Principal
    client_host: str
    api_name: str = "OffsetCommit"


class CommitReplies:
    """The replies to commits of one plan. ``resolve`` passes all of them to ``send`` at once."""

    __slots__ = ("_correlation_ids", "_planned", "_send")

    def __init__(self, planned: PlanEntry, correlation_ids: list[bytes], send: Send) -> None:
        self._planned = planned
        self._correlation_ids = correlation_ids
        self._send = send

    def resolve(self, value: OffsetCommitReply) -> None:
        planned = self._planned
        start, rest = planned.reply_start, planned.reply_rest
        if value is not COMMITTED:
            start, rest = _reply_parts(planned.version, planned.commit.pack(value))
        self._send([start + (rest + start).join(self._correlation_ids) + rest])


class CommitFastPath:
    """The layouts and plans of one broker.

    There are new plans and old plans, each with a limit of memory. At the limit, the new plans become the old plans,
    and the former old plans are dropped. This happens only if the new plans were used often, or if many other plans
    were refused. An old plan that is used becomes a new plan again, if it fits. If there are more members than plans
    that fit, plans are seldom used, and new ones are made only at a slow rate. The memory of layouts is bounded, too:
    at its limit, the layouts of one frame length are dropped, the oldest length first.
    """

    def __init__(self, broker: BrokerServices, most_bytes: int = MAX_PLAN_BYTES) -> None:
        """``most_bytes``: the limit for the bytes of the new plans, and of the old ones."""
        self._broker = broker
        self._most_bytes = most_bytes
        self._layouts: OrderedDict[int, list[Layout]] = OrderedDict()  # by the frames' length
        self.layout_bytes = 0
        self.plans: dict[Key, PlanEntry] = {}
        self.old_plans: dict[Key, PlanEntry] = {}
        self._plan_bytes = 0  # of the new plans
        self.uses = self._refused = 0  # since the last exchange of new and old plans
        self.seen: set[int] = set()
        self.seen_before: set[int] = set()
        # ``take`` reads one frame more than it returns. The next call uses the parts of this frame again.
        self._next_layout: Layout | None = None
        self._next_read: tuple[bytes, tuple[ConstantBytes, CommitOffsets] | None] = (b"", None)

    def take(
        self, backlog: deque[bytes], room: int, until_s: float, client: Client | None = None
    ) -> tuple[PlanEntry, list[CommitOffsets]] | None:
        """Returns a plan, and the commits at the head of the backlog that have this plan, at most ``room``.

        Returns None if the general path has to serve the first frame. Reading ends soon after ``until_s`` by the
        scheduler's clock. The frames stay in the backlog: the caller removes them.
        """
        frame = backlog[0]
        next_frame, next_parts = self._next_read
        for layout in self._layouts.get(len(frame), ()):
            parts = next_parts if frame is next_frame and layout is self._next_layout else layout.read(frame)
            if parts is None:
                continue
            same, commit = parts
            key = (layout.head, same)
            planned = self.plans.get(key) or self._old_plan(key)
            if planned is not None:
                break
        else:
            self._add_plan(frame)
            return None
        broker = self._broker
        runtime = broker.groups
        if planned.shards != runtime.partition_count or not planned.commit.is_current(broker):
            # a topic has changed: later frames make a new plan
            if self.plans.pop(key, None) is not None:
                self._plan_bytes -= planned.bytes_kept
            self.old_plans.pop(key, None)
            return None
        if broker.authorizer is not None and not _is_allowed(broker.authorizer, planned, client):
            return None  # the general path asks again, and refuses
        self.uses += 1
        commits = [commit]
        if len(backlog) == 1:
            return planned, commits
        size = len(frame)
        clock = broker.scheduler.clock
        for number in range(1, min(room, len(backlog))):
            if not number % COMMITS_PER_LOOK and clock() >= until_s:
                break
            frame = backlog[number]
            if len(frame) != size:
                break
            parts = layout.read(frame)
            if parts is None:
                break
            if parts[0] != same:  # the frame has another plan, which the next call looks for
                self._next_layout, self._next_read = layout, (frame, parts)
                break
            if number == 1:
                most = runtime.batch_bytes(planned.shard) // planned.most_bytes
            if number >= most:
                break
            commits.append(parts[1])
        return planned, commits

    def submit(self, planned: PlanEntry, commits: list[CommitOffsets], send: Send) -> None:
        """Passes the commits to the coordinator. ``send`` gets their replies, now or later."""
        if len(commits) == 1:
            correlation_id, offsets, epochs = commits[0]
            correlation_ids = [correlation_id]
        else:
            correlation_ids = [commit[0] for commit in commits]
            offsets = _concatenated([commit[1] for commit in commits])
            first_epochs = commits[0][2]
            epochs = None if first_epochs is None else _concatenated([commit[2] for commit in commits])
        request = PlannedCommits(planned.plan, offsets, epochs)
        replies = CommitReplies(planned, correlation_ids, send)
        self._broker.groups.submit_for(planned.shard, request, replies)

    @property
    def bytes_kept(self) -> int:
        """The estimated memory of plans and layouts."""
        return self.layout_bytes + sum(map(_bytes_of, (*self.plans.values(), *self.old_plans.values())))

    def _add_plan(self, frame: bytes) -> None:
        """Makes a plan if a commit of this kind has arrived before."""
        if len(frame) > MAX_FRAME_BYTES or not self._has_room(_PLAN_BYTES):
            return
        layout = self._layout(frame)  # layouts of the same length may have their offsets at other positions
        parts = None if layout is None else layout.read(frame)
        if layout is None or parts is None:
            return
        key = (layout.head, parts[0])
        mark = hash(key)
        if mark not in self.seen and mark not in self.seen_before:
            if len(self.seen) >= MAX_SEEN:
                self.seen_before, self.seen = self.seen, set()
            self.seen.add(mark)
            return
        size = _PLAN_BYTES + _PARTITION_BYTES * len(parts[1].offsets) + _COPIES_OF_FRAME * len(frame)
        if size > self._most_bytes or not self._has_room(size):
            return
        planned = self._plan(frame, parts[1], size)
        if planned is not None:
            self.plans[key] = planned
            self._plan_bytes += size

    def _has_room(self, size: int) -> bool:
        """Returns whether a plan of ``size`` bytes fits. May make room for it: see the class."""
        if self._plan_bytes + size > self._most_bytes:
            plans = len(self.plans)
            if self.uses < USES_PER_PLAN * plans and self._refused < REFUSALS_PER_PLAN * plans:
                self._refused += 1
                return False
            self.old_plans, self.plans = self.plans, {}
            self._plan_bytes = self.uses = self._refused = 0
        return True

    def _old_plan(self, key: Key) -> PlanEntry | None:
        """Returns the old plan with this key, or None. Makes it a new plan if it fits."""
        planned = self.old_plans.get(key)
        if planned is not None and self._has_room(planned.bytes_kept) and self.old_plans.pop(key, None) is not None:
            self.plans[key] = planned
            self._plan_bytes += planned.bytes_kept
        return planned

    def _layout(self, frame: bytes) -> Layout | None:
        positions = positions_in(frame)
        if positions is None:
            return None
        layouts = self._layouts.get(len(frame), [])
        for layout in layouts:
            if layout.head == frame[:4] and layout.positions == positions:
                return layout
        new_layout = Layout(frame, positions)
        if len(layouts) >= MAX_LAYOUTS_PER_LENGTH:
            self.layout_bytes -= layouts.pop(0).bytes_kept
        self.layout_bytes += new_layout.bytes_kept
        while self.layout_bytes > MAX_LAYOUT_BYTES and self._layouts:
            _, oldest = self._layouts.popitem(last=False)
            self.layout_bytes -= sum(layout.bytes_kept for layout in oldest)
        self._layouts.setdefault(len(frame), []).append(new_layout)
        return new_layout

    def _plan(self, frame: bytes, read: CommitOffsets, size: int) -> PlanEntry | None:
        """Returns the plan of a frame, or None if the general path has to serve such frames each time."""
        head = read_request_head(frame)
        try:
            message, _ = schemas.decode(head.api_key, head.version, Kind.REQUEST, frame, head.body)
        except ValueError:
            return None
        commit = k08_offset_commit.commit_of(self._broker, head.version, message)
        request = commit.request
        limit = self._broker.groups.config.offset_metadata_max_bytes
        if request is None or commit.unknown or request.retention_time_ms != -1:
            return None
        rows = [row for topic in request.topics for row in topic.partitions]
        epochs = tuple(row[2] for row in rows) if read.leader_epochs is not None else None
        if any(is_longer(row[3] or "", limit) for row in rows) or read[1:] != (tuple(row[1] for row in rows), epochs):
            return None
        plan = CommitPlan(request)
        start, rest = _reply_parts(head.version, commit.pack(COMMITTED))
        runtime = self._broker.groups
        shard, shards = commit.shard(self._broker), runtime.partition_count
        return PlanEntry(shard, shards, plan, commit, head.version, plan.most_bytes, size, start, rest, {})


def _is_allowed(authorizer: Authorizer, planned: PlanEntry, client: Client | None) -> bool:
    """Returns whether a client may make the commits of a plan. The plan remembers the ACLs that allow it.

    The audit log has every request that is allowed, if it logs grants. Then the general path serves all commits.
    """
    if client is None or authorizer.logs_grants:
        return False
    who = client.principal, client.client_host
    if planned.granted.get(who) == authorizer.version:
        return True
    request = planned.commit.request
    assert request is not None
    asker = CommitAsker(*who)
    asked = [(Resource.GROUP, request.group_id), *((Resource.TOPIC, topic.topic) for topic in request.topics)]
    if not all(authorizer.allows(asker, Operation.READ, *resource, logs_denial=False) for resource in asked):
        return False
    if len(planned.granted) >= MAX_CLIENTS_PER_PLAN:
        planned.granted.clear()
    planned.granted[who] = authorizer.version
    return True


def _bytes_of(planned: PlanEntry) -> int:
    return planned.bytes_kept


def _reply_parts(version: int, message: bytes) -> tuple[bytes, bytes]:
    """Returns the bytes of a reply before and after its correlation id."""
    head = reply_head(OFFSET_COMMIT, version, 0)
    return (len(head) + len(message)).to_bytes(4, "big"), head[4:] + message


def _concatenated(parts: list[Any]) -> tuple[int, ...]:
    return tuple([number for part in parts for number in part])
