"""The consumer groups of a query's sources, whose offsets a micro-batch's transaction commits. Runs in the driver.

A source with ``commitOffsets=transaction`` does not commit to its group. The checkpoint has the end of a
micro-batch before Spark runs it. The micro-batch's transaction commits this end. The rules of ``plan`` decide which
offsets are committed: a reset that the query has to follow stays in the group, and the planner follows it in the next
micro-batch.

Another client may reset the group after the driver has fetched its offsets, but before TxnOffsetCommit, which would
overwrite the reset. So after TxnOffsetCommit the driver fetches the offsets again, inside the transaction. If another
client has committed meanwhile, the rules decide again, and the driver sends other offsets. A commit that comes after
TxnOffsetCommit stays in the group, because the coordinator keeps the later record of the two. So the driver sees every
reset before the transaction overwrites it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError

from odradek.client.admin import Admin
from odradek.client.errors import GroupIdNotFound
from odradek.client.producer import Producer
from odradek.core.ids import ConsumerGroupMetadata, TopicPartition
from odradek.spark.driver.micro_batch_number import MicroBatchRefused
from odradek.spark.driver.query_sources import source_options
from odradek.spark.offsets import plan
from odradek.spark.offsets.lookups import Lookups
from odradek.spark.offsets.source_offset import SourceOffset

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject

MAX_LOOKS = 10
"""How often the driver fetches the offsets of a group that other clients change all the time, before it gives up."""


@dataclass
class _OverwrittenCommits:
    """Other clients' commits that a transaction overwrites, for a warning after the transaction has committed."""

    lookups: Lookups
    decision: plan.CommitDecision
    commits: plan.Commits
    query: str


class MicroBatchGroups:
    """The groups of one query. ``execution`` is Java's StreamExecution."""

    def __init__(self, execution: JavaObject, sources: Mapping[int, Lookups], count: int) -> None:
        """``sources``: the lookups by the number of the source; ``count``: the number of all sources."""
        self._execution = execution
        self._sources = sources
        self._count = count
        self._overwritten: list[_OverwrittenCommits] = []

    @classmethod
    def of(cls, execution: JavaObject, admin: Admin) -> MicroBatchGroups:
        """Returns the groups of a query. ``admin``: a client of the transaction's cluster. Raises MicroBatchRefused and
        Admin's errors."""
        found = source_options(execution)
        chosen = {
            number: Lookups(options)
            for number, options in enumerate(found)
            if options is not None and options.offsets_in_transaction
        }
        groups = cls(execution, chosen, len(found))
        try:
            for lookups in chosen.values():
                _check_cluster(lookups, admin)
        except BaseException:
            groups.close()
            raise
        return groups

    def close(self) -> None:
        for lookups in self._sources.values():
            lookups.close()

    @property
    def names(self) -> list[str]:
        return [lookups.group_id for lookups in self._sources.values()]

    def begun_ms(self, batch: int) -> int | None:
        """Returns the time in the checkpoint at which Spark planned a micro-batch; None if the checkpoint has none."""
        entry = self._execution.offsetLog().get(batch)
        try:
            found = None if entry.isEmpty() else entry.get().metadataOpt()
            return None if found is None or found.isEmpty() else int(found.get().batchTimestampMs())
        except Py4JError:  # another release of Spark may have other names for these methods
            return None

    def newest_plan(self) -> int | None:
        """Returns the number of the newest micro-batch of which the checkpoint has a plan, by any driver; None if it
        cannot be read."""
        try:
            newest = self._execution.offsetLog().getLatestBatchId()
            return None if newest.isEmpty() else int(newest.get())
        except Py4JError:  # another release of Spark may have another name for this method
            return None

    def plan_of(self, batch: int) -> str | None:
        """Returns a digest of the end that Spark has planned for a micro-batch; None if the checkpoint has no end that
        can be read.

        Spark plans a micro-batch once, so a repeated micro-batch has the same digest."""
        texts = planned_ends(self._execution, batch)
        return None if texts is None else hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:16]

    def add_to(self, producer: Producer, batch: int) -> None:
        """Adds the groups' offsets after a micro-batch to the producer's transaction. Raises MicroBatchRefused,
        GroupReset, and errors of Admin and Producer.
        """
        self._overwritten = []
        if self._sources:
            ends = self._ends(batch)
            _check_distinct(ends)
            for lookups, end in ends:
                self._add(producer, lookups, end)

    def warn_of_overwritten(self) -> None:
        """Warns of other clients' commits that the transaction has overwritten. Call it after the commit."""
        for one in self._overwritten:
            one.lookups.warn_of_overwritten(one.decision, one.commits, one.query)
        self._overwritten = []

    def _add(self, producer: Producer, lookups: Lookups, end: SourceOffset) -> None:
        group = lookups.group_id
        check_members(lookups.admin, group, "has the offsets of the query's source")
        existing = lookups.existing_ends(end, lookups.ends(lookups.partitions()))
        found, added = lookups.committed(end.positions), set[TopicPartition]()
        for _ in range(MAX_LOOKS):
            decision = lookups.commit_decision(end, found)
            commits = plan.existing_commits(decision, existing)
            # For a partition with a late reset, the transaction already has an offset. The reset's offset replaces it.
            late = {tp: found[tp] for tp in decision.resets if tp in added}
            producer.send_offsets_to_transaction({**commits, **late}, ConsumerGroupMetadata(group))
            added.update(commits)
            # Without require_stable, the reply has the committed offsets, not this transaction's pending ones.
            now = lookups.admin.list_group_offsets(group, end.positions)
            if now == found:
                self._overwritten.append(_OverwrittenCommits(lookups, decision, commits, end.query))
                return
            found = now
        raise MicroBatchRefused(
            f"other clients change the offsets of group {group} all the time, {MAX_LOOKS} times while a micro-batch "
            "was committed: stop them, or give the query its own kafka.group.id"
        )

    def _ends(self, batch: int) -> list[tuple[Lookups, SourceOffset]]:
        entry = self._execution.offsetLog().get(batch)
        if entry.isEmpty():
            raise MicroBatchRefused(
                f"the checkpoint has no offsets of micro-batch {batch} yet: set asyncProgressTrackingEnabled=false"
            )
        if entry.get().getClass().getSimpleName() != "OffsetSeq":
            raise MicroBatchRefused(
                "commitOffsets=transaction does not support checkpoints with named sources: use unnamed sources, with "
                "spark.sql.streaming.offsetLog.formatVersion=1"
            )
        offsets = entry.get().offsets()
        if offsets.size() != self._count:
            raise MicroBatchRefused(
                f"micro-batch {batch} has {offsets.size()} sources in the checkpoint and {self._count} in the query: "
                "load each source once, or set commitOffsets=false"
            )
        found = [(lookups, offsets.apply(number)) for number, lookups in self._sources.items()]
        return [
            (lookups, SourceOffset.from_json(json.loads(offset.get().json())))
            for lookups, offset in found
            if offset.isDefined()
        ]


def planned_ends(execution: JavaObject, batch: int) -> list[str | None] | None:
    """Returns the end that Spark has planned for a micro-batch, for each source; None if it cannot be read. If
    ``execution`` has planned the micro-batch itself, it has the plan in its memory; otherwise it reads the checkpoint.
    """
    entry = execution.offsetLog().get(batch)
    try:
        if entry.isEmpty():
            return None
        ends = entry.get().offsets()
        found = [ends.apply(number) for number in range(ends.size())]
        return [end.get().json() if end.isDefined() else None for end in found]
    except Py4JError:  # named sources have another form
        return None


def check_members(admin: Admin, group: str, what: str) -> None:
    """Raises MicroBatchRefused if a group has live members: their commits could overwrite those of the transaction."""
    try:
        members = admin.describe_groups([group])[group].members
    except GroupIdNotFound:
        return
    if members:
        named = ", ".join(f"{one.client_id} at {one.host.lstrip('/')}" for one in members)
        raise MicroBatchRefused(f"group {group} {what} and has live members ({named}): stop them")


def _check_distinct(ends: Iterable[tuple[Lookups, SourceOffset]]) -> None:
    """Raises MicroBatchRefused if two sources would commit the same partition to one group: a transaction can commit
    only one of the two offsets, and the lookup of the second source would wait for the end of this transaction.

    It also refuses two sources that would not commit a common partition now, because they would do so later."""
    seen: set[tuple[str, TopicPartition]] = set()
    for lookups, end in ends:
        for tp in end.positions:
            if (lookups.group_id, tp) in seen:
                raise MicroBatchRefused(
                    f"two sources of the query commit offsets of {tp} to group {lookups.group_id} in one transaction:"
                    " load the topic once, or give one source another kafka.group.id or commitOffsets=false. A stream"
                    " that is joined with itself has two sources"
                )
            seen.add((lookups.group_id, tp))


def _check_cluster(lookups: Lookups, admin: Admin) -> None:
    theirs, ours = lookups.admin.describe_cluster().cluster_id, admin.describe_cluster().cluster_id
    if theirs != ours:
        raise MicroBatchRefused(
            f"group {lookups.group_id} is in another cluster ({theirs}) than the output topic ({ours}), and a "
            "transaction has one cluster: set commitOffsets=true, which commits after the micro-batch"
        )
