"""Adoption: a new checkpoint begins at the offsets of a table, if the old one does not agree with the table.

The plan shows what is done. Then, in this order: an entry of the table's log ends all earlier runs and queries, and has
the table's offsets; the old checkpoint gets another name; the new one is marked as the table's; the group is committed.
The first micro-batch of the new checkpoint must begin at these offsets (``commit/state``), so a killed adoption is
simply repeated.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from odradek.client.admin import Admin
from odradek.core.errors import ConfigError, StorageError
from odradek.core.ids import EARLIEST, LATEST, TopicPartition
from odradek.core.keyword_options import with_keywords
from odradek.pipelines.commit.state import (
    ANOTHER_TABLE,
    BatchPlan,
    TableRefused,
    ends_of,
    replaced_topics,
    topic_of,
)
from odradek.pipelines.filesystems.hadoop_location import location_of
from odradek.pipelines.formats.table_description import stored_layout
from odradek.pipelines.formats.table_format import catalog_place
from odradek.pipelines.formats.target import Target, values_of_layout
from odradek.pipelines.options import AdoptOptions
from odradek.pipelines.queries import start_spark
from odradek.pipelines.sources import with_short_timeouts
from odradek.pipelines.tables.group_fence import FenceLost
from odradek.pipelines.tables.table import Table, open_table
from odradek.spark.offsets.commit_marks import is_of_table, mark_commit, other_output, with_output
from odradek.spark.options import parse_options
from odradek.text.table_paths import check_uri, is_uri

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from odradek.client.config import ClientConfig
    from odradek.client.model import TopicDescription
    from odradek.spark.offsets.plan import Commits

    Topics = Mapping[str, TopicDescription]

_MOST_FENCES = 5
NOTES, ROWS = "the notes of the table", "the rows of the table"
NOTES_AND_ROWS = "the notes of the table, and by its rows where an earlier version has noted nothing"
START = "a RESTORE of the Delta log, which took back all micro-batches: the table begins at the start of the topics"


@dataclass(frozen=True)
class Adoption:
    """What an adoption does. ``offsets``: where the new checkpoint begins. ``known_by``: how these are known.
    ``committed``: the group's offsets before. ``checkpoint``: the old checkpoint, and ``kept_as``: its new name;
    both are None if there is none. ``replaced``: topics that were deleted and created again since the table read
    them: they begin at their start. ``unknown``: topics of which that is not known. ``new``: partitions of the
    table's topics that neither the table nor the group knows, and their log starts: the group is committed there.
    ``forgotten``: partitions of which the table has nothing, although a run of it has committed them: the table is
    an older copy. The group is set to their log starts. ``deleted``: partitions whose records from the table's offset
    on were deleted, and that offset: they begin at their log start. ``lost``: files of the newest micro-batch that are
    nowhere: the table goes on without their rows. ``readable``: the offsets of that micro-batch that its topics still
    have, from the first to the one after the last. ``outputs``: other tables whose pipelines have committed to it.
    ``is_new_group``: whether the group has no offsets. ``is_done``: whether it was done."""

    offsets: Mapping[TopicPartition, int]
    known_by: str
    committed: Mapping[TopicPartition, int]
    checkpoint: str | None
    kept_as: str | None
    replaced: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    new: Mapping[TopicPartition, int] = field(default_factory=dict)
    forgotten: Mapping[TopicPartition, int] = field(default_factory=dict)
    deleted: Mapping[TopicPartition, int] = field(default_factory=dict)
    lost: frozenset[str] = frozenset()
    readable: Mapping[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    is_new_group: bool = False
    is_done: bool = False


@with_keywords(AdoptOptions)
def adopt(options: AdoptOptions) -> Adoption:
    """Lets a new checkpoint begin at the offsets of a table; returns what is done, or would be done.

    Raises ConfigError, StorageError, GroupNotEmpty, BrokerUnreachable.
    """
    given = {"kafka.bootstrap.servers": options.bootstrap_servers, "subscribe": "any", **(options.options or {})}
    client = with_short_timeouts(parse_options(given, streaming=False).client)

    def get_spark() -> SparkSession:
        return options.spark or start_spark(options.master, options.conf)

    target = _target(options, get_spark)
    with open_table(target, get_spark) as (table, _), Admin(client) as admin:
        table.check_own_checkpoint()
        table.check_notes()
        seen = table.notes(()).newest_query  # before all other looks: a run may add a micro-batch between two of them
        noted, known_by, topics = _offsets_of(table, admin)
        if not noted:
            raise ConfigError(
                f"{table.location.uri} has no rows of an ingest, and no notes of one: there is nothing to adopt. Read "
                "into it with a new --checkpoint, which begins at the group's offsets (`odradek groups reset` sets "
                "them), or into a new --output"
            )
        committed = {tp: one for tp, one in admin.list_group_offsets(options.group).items() if one.offset >= 0}
        described = admin.describe_topics({tp.topic for tp in (*noted, *committed)}, missing_ok=True)
        existing, present = _partitions_of(described), _ids_of(described)
        offsets, replaced = _of_present_topics(admin, noted, topics, described, table.location.uri)
        deleted = {tp: noted[tp] for tp, at in offsets.items() if tp.topic not in replaced and noted[tp] < at}
        read, output = {tp.topic for tp in offsets}, table.location.uri
        unknown = tuple(sorted({tp.topic for tp in noted} & present.keys() - topics.keys()))
        others = existing - offsets.keys()
        ours = {tp for tp in others & committed.keys() if is_of_table(committed[tp], output, is_read=tp.topic in read)}
        of_table = read | {tp.topic for tp in ours}
        # With a reset to the end, the new checkpoint would skip their records: the old one read them from their start.
        new = _log_starts(admin, [tp for tp in others - committed.keys() if tp.topic in of_table])
        forgotten = _log_starts(admin, ours)
        held = {tp: one.offset for tp, one in committed.items() if tp in offsets}
        old = table.checkpoint if table.checkpoint.children() else None
        kept_as = None if old is None else f"{old.uri.rstrip('/')}.before-{uuid.uuid4().hex[:8]}"
        old_uri = None if old is None else old.uri
        lost = table.lost_files
        others_of = tuple(sorted({other_output(one, output) for one in committed.values()} - {""}))
        found = Adoption(
            offsets, known_by, held, old_uri, kept_as, replaced, unknown, new, forgotten, deleted, lost,
            readable=_readable(admin, {tp: at for tp, at in table.lost_offsets.items() if tp in offsets}, replaced),
            outputs=others_of, is_new_group=not committed,
        )  # fmt: skip
        if not options.execute:
            return found
        starts = dict(sorted((offsets | new | forgotten).items()))
        ids = {name: digest for name, digest in present.items() if name in of_table}
        table.adopt(_plan(starts, new | forgotten, {**topics, **ids}), seen)
        if old is not None and kept_as is not None:
            old.rename(kept_as)
        table.bind_anew()
        commits = {tp: with_output(mark_commit(at), output) for tp, at in starts.items() if tp in existing}
        _set_group(table, admin, client, options.group, commits)
    return replace(found, is_done=True)


def _readable(
    admin: Admin, lost: Mapping[TopicPartition, tuple[int, int]], replaced: Collection[str]
) -> dict[TopicPartition, tuple[int, int]]:
    """Returns the parts of the ranges that the log still has. ``replaced``: topics with other records there."""
    lost = {tp: span for tp, span in lost.items() if tp.topic not in replaced}
    starts = _log_starts(admin, lost)
    return {tp: (max(start, starts[tp]), end) for tp, (start, end) in lost.items() if starts[tp] < end}


def _set_group(table: Table, admin: Admin, client: ClientConfig, group: str, commits: Commits) -> None:
    """Commits the offsets, which the table's log has. Raises StorageError, KafkaError."""
    fenced = table.fenced_commits(client)
    if fenced is None:
        admin.alter_group_offsets(group, commits)
        return
    with contextlib.closing(fenced):
        for _ in range(_MOST_FENCES):  # a run that is about to end may fence this one
            fenced.fence()
            with contextlib.suppress(FenceLost):
                fenced.commit(admin, group, commits)
                return
    raise StorageError(f"group {group}: other runs of the table commit, too: stop them, and repeat the command")


def _target(options: AdoptOptions, get_spark: Callable[[], SparkSession]) -> Target:
    """Returns the table with the layout that it was begun with. Raises ConfigError."""
    place = catalog_place(options)
    output = str(options.output) if place is None else place.folder
    check_uri("the output", output, workers=False)
    held = stored_layout(location_of(output, get_spark() if is_uri(output) else None))
    checkpoint = None if options.checkpoint is None else str(options.checkpoint)
    given = options.storage_options or {}
    return Target(
        output, held.table_format, values_of_layout(held), held.partition_by, checkpoint,
        storage_options=given, fence_commits=options.fence_commits, allow_lost=True,
        single_driver=options.single_driver, place=place,
    )  # fmt: skip


def _plan(
    offsets: Mapping[TopicPartition, int], first: Mapping[TopicPartition, int], topics: Mapping[str, str]
) -> BatchPlan:
    """Returns a micro-batch without rows that ends at the offsets, of a query that no checkpoint has. ``first``: those
    of partitions that the table does not have."""
    query = f"adopted-{uuid.uuid4().hex}"
    return BatchPlan(
        query, 0, ends_of({}), ends_of(offsets), offsets=offsets, first=first, topics=topics, is_whole=True
    )


def _ids_of(described: Topics) -> dict[str, str]:
    """Returns the digests of the ids of the topics."""
    return {name: topic_of(str(one.topic_id)) for name, one in described.items() if one.topic_id is not None}


def _offsets_of(table: Table, admin: Admin) -> tuple[dict[TopicPartition, int], str, Mapping[str, str]]:
    """Returns the table's offsets, those of its notes or the ones after its rows; how they are known; and the digests
    of the ids of their topics, as far as they are known.

    Delta's log can only be asked for the offset of a named partition, and a partition that was read may have no rows.
    So it is asked for all partitions of the cluster.

    Rows never move a partition that the notes have: they may be those of another writer. Other
    partitions are known by their rows only if the notes may lack partitions, as those of earlier versions.
    """
    rows = table.row_ends()
    described = admin.describe_topics()
    notes = table.notes({*rows, *_partitions_of(described)})
    newest = notes.newest_query
    if newest is None and (lost := sorted(notes.lost or ())):
        return dict.fromkeys(lost, 0), START, {}
    noted = dict(newest.offsets or {}) if newest is not None else {}
    unnoted = {} if noted and notes.is_whole else {tp: at for tp, at in rows.items() if tp not in noted}
    _check_known(table, unnoted)
    if newest is None or not noted:
        return unnoted, ROWS, {}
    return {**unnoted, **noted}, NOTES_AND_ROWS if unnoted else NOTES, newest.topics


def _check_known(table: Table, rows: Mapping[TopicPartition, int]) -> None:
    """Raises TableRefused if the last rows of a partition may be those of a replay: another writer has rewritten the
    files, for example by OPTIMIZE, so their names do not tell it. The position of an ingest may be before them."""
    if not rows or not table.has_replays():
        return
    foreign = table.foreign_row_ends(rows.keys())
    if unknown := sorted(tp for tp, at in rows.items() if foreign.get(tp) == at):
        raise TableRefused(
            f"the last rows of {unknown[0]} in {table.location.uri} are in files of another writer (as after "
            "OPTIMIZE), and replays have added rows to this table, too. So it is not known up to which offset an "
            f"ingest has read. Nothing was adopted. There is only one way on: {ANOTHER_TABLE}"
        )


def _partitions_of(described: Topics) -> set[TopicPartition]:
    """Returns the partitions of the topics."""
    return {TopicPartition(name, part.partition) for name, one in described.items() for part in one.partitions}


def _log_starts(admin: Admin, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
    return {tp: start.offset for tp, start in admin.list_offsets(dict.fromkeys(sorted(partitions), EARLIEST)).items()}


def _of_present_topics(
    admin: Admin, offsets: Mapping[TopicPartition, int], topics: Mapping[str, str], described: Topics, table: str
) -> tuple[dict[TopicPartition, int], tuple[str, ...]]:
    """Returns where each partition continues, and the replaced topics. ``described``: the present topics.

    A topic that was deleted and created again has other records at the same offsets. All of them are new to the table,
    so such a topic begins at its start. A partition whose next records were deleted begins at its log start. Raises
    ConfigError if that is not known, but the offsets cannot be the topic's.
    """
    replaced = replaced_topics(topics, _ids_of(described))
    found = {tp: at for tp, at in offsets.items() if tp.topic not in replaced}
    existing = _partitions_of(described)
    ends = admin.list_offsets(dict.fromkeys(found.keys() & existing, LATEST))
    for tp in sorted(found):
        if tp.topic in described and (end := ends[tp].offset if tp in ends else 0) < found[tp]:
            raise ConfigError(
                f"{table} has records of {tp} before offset {found[tp]}, and this partition ends at {end}: its topic "
                "was deleted and created again, or has lost records; read it into a new --output"
            )
    starts = _log_starts(admin, [tp for tp in existing if tp.topic in replaced or tp in found])
    present_offsets = found | {tp: max(at, found.get(tp, 0)) for tp, at in starts.items()}
    return dict(sorted(present_offsets.items())), tuple(replaced)
