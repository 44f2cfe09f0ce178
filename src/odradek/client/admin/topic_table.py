"""``odradek.read_table``: the records of a topic between two bounds as one Arrow table."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from odradek.batches.columns import DEFAULT_COLUMNS, check_columns
from odradek.batches.row_sets import needs_columns
from odradek.client import loop, offset_requests, topic_requests
from odradek.client.admin import group_operations
from odradek.client.arguments import as_name, as_whole, isolation
from odradek.client.cluster import Cluster
from odradek.client.config import ClientConfig, as_config
from odradek.client.errors import GroupIdNotFound, UnknownTopic
from odradek.client.reader import read_range, shared_cluster
from odradek.core.errors import ConfigError, OdradekError
from odradek.core.ids import EARLIEST, LATEST, NO_OFFSET, TopicPartition
from odradek.text.similar_names import nearest

if TYPE_CHECKING:
    import pyarrow as pa

    from odradek.client.model import TopicDescription

Bound = str | int | datetime | Mapping[int, int]
"""``"earliest"`` or ``"latest"``; an offset; a number below 0, which counts back from the end of each partition; a time
with a time zone; or an offset for each partition."""

_READERS = 4
_MILLISECONDS = 10**11
"""A start that is larger, and above all ends, is a time in 1973 or later and no offset."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class _Ends:
    """The log start and the present end of each partition, and what the lookups of the bounds found."""

    starts: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]
    looked_up: Mapping[str, Mapping[TopicPartition, int]] = field(default_factory=dict)


def read_table(
    topic: str,
    bootstrap_servers: ClientConfig | Mapping[str, object] | Sequence[str] | str,
    *,
    start: Bound = "earliest",
    end: Bound = "latest",
    start_group: str | None = None,
    end_group: str | None = None,
    columns: Sequence[str] = DEFAULT_COLUMNS,
    isolation_level: str = "read_uncommitted",
    **settings: object,
) -> pa.Table:
    """Returns the records of a topic from ``start`` to before ``end`` as a table, partition by partition.

    A bound is ``"earliest"``, ``"latest"``, an offset, a number below 0 (``start=-100``: the last 100 offsets of each
    partition), a ``datetime`` with a time zone (the first record that is not older), or a mapping from partitions to
    offsets, which also chooses the partitions. ``start_group`` starts at the committed offsets of a group, so that the
    table has what the group has still to read; ``end_group`` ends there. A partition without a commit counts as not
    read. Bounds outside of a log become its start or its end; milliseconds since 1970 as a start are an error. A start
    behind the end of a log gives a UserWarning; one offset for all partitions only if each of them ends before it.

    ``settings`` are those of ``ClientConfig``. The whole table is in memory. Raises UnknownTopic, GroupIdNotFound,
    ValueError or TypeError for an invalid bound or column, ColumnsMissing without the packages of the extra ``arrow``,
    and the errors of ``Admin``.

    >>> odradek.read_table("flights", "127.0.0.1:9092", start=-5).num_rows      # doctest: +SKIP
    5
    """
    _check_settings(settings)
    if not as_name(topic, "topic"):
        raise ValueError("topic='': a topic's name cannot be empty")
    if ":" in topic or "," in topic:
        raise ValueError(f"topic={topic!r}: the name of one topic is expected; start={{0: 0}} chooses partitions")
    check_columns(columns)
    columns = tuple(columns)
    level = isolation(isolation_level)
    bounds = {"start": _given("start", start, "earliest", start_group), "end": _given("end", end, "latest", end_group)}
    with needs_columns("read_table()"):
        import pyarrow as pa

        from odradek.batches.columns.arrow_columns import schema
    config = as_config(bootstrap_servers, **settings)
    ranges, behind_end = loop.run(_ranges(shared_cluster(config), topic, bounds, level))
    for line in behind_end:
        warnings.warn(line, UserWarning, stacklevel=2)

    def read(tp: TopicPartition) -> list[pa.RecordBatch]:
        first, last = ranges[tp]
        return list(read_range(config, tp, first, last, columns=columns, isolation_level=isolation_level))

    with ThreadPoolExecutor(_READERS) as pool:
        batches = [batch for read_batches in pool.map(read, ranges) for batch in read_batches]
    return pa.Table.from_batches(batches, None if batches else schema(columns))


def _check_settings(settings: Mapping[str, object]) -> None:
    """Raises ConfigError for the name of a bound in other libraries, or a slip in one of ours."""
    if given := settings.keys() & {"group", "group_id", "group.id"}:
        raise ConfigError(
            f"read_table() has no setting {min(given)}: start_group starts at the committed offsets of a group, "
            "end_group ends there"
        )
    for setting in settings:
        if bound := _BOUNDS.get(setting):
            raise ConfigError(f"read_table() has no setting {setting}: here, {bound}")
        if near := nearest(setting, _PARAMETERS):
            raise ConfigError(f"read_table() has no setting {setting}{near}")


_PARAMETERS = ("start", "end", "start_group", "end_group", "columns", "isolation_level")
_BOUNDS = {
    **dict.fromkeys(("partition", "partitions"), "start={0: 4}, from the chosen partitions to their first offsets"),
    **dict.fromkeys(("limit", "max_records", "max_messages", "n"), "end=100, the first offset that is left out"),
    **dict.fromkeys(("tail", "last"), "start=-100, the last 100 offsets of each partition"),
    **dict.fromkeys(("start_offset", "start_offsets", "starting_offsets", "from_offset", "offset", "since"), "start"),
    **dict.fromkeys(("end_offset", "end_offsets", "ending_offsets", "until", "to"), "end"),
    **dict.fromkeys(("start_time", "start_timestamp", "from_time"), "start=datetime(…, tzinfo=timezone.utc)"),
    **dict.fromkeys(("end_time", "end_timestamp", "to_time"), "end=datetime(…, tzinfo=timezone.utc)"),
    "topics": "topic, one at a time",
    "auto_offset_reset": 'start="earliest", the default, or another bound',
}
"""Keywords that a person may try, and the bound in their place."""


class _CommittedOffsets(str):
    """The name of a group whose committed offsets are a bound."""

    __slots__ = ()


def _given(name: str, bound: Bound, default: str, group: str | None) -> Bound:
    """Checks a bound, and returns it. Raises ValueError, TypeError."""
    if group is not None:
        if bound != default:
            raise ValueError(f"{name} and {name}_group are both set: use one of them")
        return _CommittedOffsets(as_name(group, f"{name}_group"))
    if isinstance(bound, str):
        if bound not in ("earliest", "latest"):
            raise ValueError(f"{name}={bound!r}: expected earliest, latest, an offset, a datetime or a mapping")
        return bound
    if isinstance(bound, datetime):
        if bound.tzinfo is None:
            raise ValueError(
                f"{name}={bound!r} has no time zone: add one, for example datetime(…, tzinfo=timezone.utc)"
            )
        return bound
    if isinstance(bound, Mapping):
        return {_whole(f"{name}: partition", p): _offset(f"{name}[{p}]", at) for p, at in bound.items()}
    return _whole(name, bound)


def _whole(name: str, given: object) -> int:
    number = as_whole(given)
    if number is None:
        raise TypeError(f"{name}: expected earliest, latest, an offset, a datetime or a mapping, not {given!r}")
    return number


def _offset(name: str, given: object) -> int:
    number = _whole(name, given)
    if number < 0:
        raise ValueError(f"{name}={number}: an offset is 0 or more")
    return number


async def _ranges(
    cluster: Cluster, topic: str, bounds: Mapping[str, Bound], level: int
) -> tuple[dict[TopicPartition, tuple[int, int]], list[str]]:
    """Returns the first offset and the end of each partition, in the order of the partitions, and the warnings."""
    known = await _described(cluster, topic)
    for bound in bounds.values():
        if isinstance(bound, _CommittedOffsets):
            await _check_group(cluster, str(bound))
    existing = sorted(TopicPartition(topic, one.partition) for one in known.partitions)
    chosen = _chosen(topic, existing, bounds)
    if not chosen:
        return {}, []

    async def lookup(when: int) -> dict[TopicPartition, int]:
        listed = await offset_requests.list_offsets(cluster, dict.fromkeys(chosen, when), level)
        return {tp: one.offset for tp, one in listed.items()}

    async def of_bound(bound: Bound) -> Mapping[TopicPartition, int]:
        if isinstance(bound, datetime):
            return await lookup((bound - _EPOCH) // timedelta(milliseconds=1))
        if isinstance(bound, _CommittedOffsets):
            commits = await offset_requests.list_group_offsets(cluster, str(bound), chosen, require_stable=False)
            return {tp: commit.offset for tp, commit in commits.items()}
        return {}

    # The starts first: a log start that is read after the end could be above it.
    starts = await lookup(EARLIEST)
    ends, first, last = await asyncio.gather(lookup(LATEST), of_bound(bounds["start"]), of_bound(bounds["end"]))
    highest, given = max(ends.values()), bounds["start"]
    if isinstance(given, int) and given > max(highest, _MILLISECONDS):
        raise ValueError(
            f"start={given}: no partition of {topic} has this offset (the highest end is {highest}); a time is a "
            "datetime with a time zone"
        )
    logs = _Ends(starts, ends, {"start": first, "end": last})
    ranges = {tp: (_at("start", bounds["start"], tp, logs), _at("end", bounds["end"], tp, logs)) for tp in chosen}
    read = {tp: (start, end) for tp, (start, end) in ranges.items() if start < end}
    return read, _starts_behind_end(bounds["start"], logs)


def _starts_behind_end(start: Bound, logs: _Ends) -> list[str]:
    """Returns a warning for each partition that ends before the start: nothing is read there, and the number may be
    wrong or the topic another one than it was. A time behind the newest record is none: no record is that new yet."""
    given: dict[TopicPartition, int] = {}
    who = "start"
    if isinstance(start, _CommittedOffsets):
        given, who = dict(logs.looked_up["start"]), f"the committed offset of group {start}"
    elif isinstance(start, Mapping):
        given = {tp: start[tp.partition] for tp in logs.ends}
    elif isinstance(start, int) and start > max(logs.ends.values()):
        given = dict.fromkeys(logs.ends, start)
    return [
        f"{who} {offset} of {tp} is outside the log, which ends at {logs.ends[tp]}: nothing is read"
        for tp, offset in sorted(given.items())
        if offset > logs.ends[tp]
    ]


async def _described(cluster: Cluster, topic: str) -> TopicDescription:
    """Describes the topic. Raises UnknownTopic with a similar name."""
    try:
        return (await topic_requests.describe_topics(cluster, [topic]))[topic]
    except UnknownTopic as error:
        try:
            known = list(await topic_requests.describe_topics(cluster, None))
        except OdradekError:
            known = []
        raise UnknownTopic(f"unknown topic {topic}{nearest(topic, known)}", (topic,)) from error


async def _check_group(cluster: Cluster, group: str) -> None:
    """Raises GroupIdNotFound with a similar name: without the group, its bound would be the start of the log."""
    try:
        await group_operations.describe_group(cluster, group)
    except GroupIdNotFound as error:
        try:
            known = [row.group_id for row in await group_operations.list_groups(cluster, (), ())]
        except OdradekError:
            known = []
        raise GroupIdNotFound(f"group {group} not found{nearest(group, known)}", group) from error


def _chosen(topic: str, existing: Sequence[TopicPartition], bounds: Mapping[str, Bound]) -> list[TopicPartition]:
    """Returns the partitions to read: those of the mappings, or all. Raises UnknownTopic."""
    named = [set(bound) for bound in bounds.values() if isinstance(bound, Mapping)]
    wanted = [tp for tp in existing if all(tp.partition in names for names in named)]
    for missing in sorted(set().union(*named) - {tp.partition for tp in existing}):
        raise UnknownTopic(f"topic {topic} has no partition {missing} (it has {len(existing)})")
    return wanted


def _at(name: str, bound: Bound, tp: TopicPartition, logs: _Ends) -> int:
    """Returns the offset of a bound, inside of the log."""
    start, end = logs.starts[tp], logs.ends[tp]
    looked_up = logs.looked_up[name].get(tp, NO_OFFSET)
    if isinstance(bound, datetime):
        at = end if looked_up == NO_OFFSET else looked_up
    elif isinstance(bound, _CommittedOffsets):
        at = looked_up if looked_up >= 0 else start
    elif isinstance(bound, str):
        at = start if bound == "earliest" else end
    elif isinstance(bound, Mapping):
        at = bound[tp.partition]
    else:
        at = bound if bound >= 0 else end + bound
    return min(max(at, start), end)
