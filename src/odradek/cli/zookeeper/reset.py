"""``odradek zookeeper reset``: sets a group's offsets to a target, as Kafka's UpdateOffsetsInZK, with more targets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from odradek.cli.option_fields import of_fields
from odradek.cli.options import check_visible, parse_partitions
from odradek.cli.reset_targets import (
    AllTopics,
    ByDuration,
    ResetTopic,
    ShiftBy,
    ToDatetime,
    ToEarliest,
    ToLatest,
    ToOffset,
    check_partitions,
    only_target,
    scenario_for,
    targets_of,
    time_of,
)
from odradek.cli.terminal import CommandError, note, print_json, warning_lines
from odradek.cli.zookeeper.scope import (
    Execute,
    Groups,
    KafkaLine,
    Names,
    UndoFile,
    ZooKeeperLine,
    group_names,
    named_groups,
    refuse_live_members,
)
from odradek.cli.zookeeper.write_plan import WriteLine, carry_out, changes_of

if TYPE_CHECKING:
    from collections.abc import Collection

    from odradek.client.admin import Admin
    from odradek.core.ids import TopicPartition
    from odradek.lag.reset import Scenario
    from odradek.zookeeper.store import OffsetStore

EPILOG = (
    "Examples:\n\n\b\n"
    "  odradek zookeeper reset --group billing --topic orders --to-earliest -z 127.0.0.1:2181 -b 127.0.0.1:9092\n"
    "  odradek zookeeper reset --group billing --all-topics --shift-by -100 --execute \\\n"
    "      -z 127.0.0.1:2181 -b 127.0.0.1:9092"
)


@dataclass(frozen=True, kw_only=True)
class ZooKeeperResetLine(KafkaLine):
    """The options of the command."""

    names: Names = None
    group: Groups = None
    topic: ResetTopic = None
    all_topics: AllTopics = False
    to_earliest: ToEarliest = False
    to_latest: ToLatest = False
    to_offset: ToOffset = None
    shift_by: ShiftBy = None
    to_datetime: ToDatetime = None
    by_duration: ByDuration = None
    execute: Execute = False
    undo_file: UndoFile = None


@of_fields(ZooKeeperLine)
def reset(line: ZooKeeperResetLine) -> None:
    """Set new offsets for a group without live members.

    Shows the offsets before and after. With --execute, writes an undo file, then all offsets in one transaction. An
    offset outside the log becomes the log start offset or the log end offset, whichever is nearer.
    """
    (group,) = _only_group(group_names(named_groups(line)))
    given = targets_of(line)
    target = only_target(given, "zookeeper reset")
    scenario = scenario_for(target, given[target])
    check_partitions(line.topic, line.all_topics)
    parse_partitions(line.topic or [])
    asked = WriteLine(line.execute, line.undo_file, line.as_json, line.undo_command)
    if not line.as_json:
        note(*time_of(scenario))
    with line.admin("Kafka knows where the logs start and end") as admin, line.store() as store:
        refuse_live_members(store, [group])
        offsets = _offsets(store, admin, group, scenario, line)
        if offsets:
            carry_out(store, changes_of(store, group, offsets), asked)
        elif line.as_json:
            print_json({"executed": False, "undo_file": None, "offsets": []}, indent=2)
        else:
            note(f"Group {group}: nothing to reset.")


def _only_group(names: list[str]) -> list[str]:
    if len(names) > 1:
        raise CommandError(f"the groups {', '.join(names)} are named: reset takes one group at a time")
    return names


def _offsets(
    store: OffsetStore, admin: Admin, group: str, scenario: Scenario, line: ZooKeeperResetLine
) -> dict[tuple[str, int], int]:
    """Returns the new offset of each chosen partition. Raises CommandError for an unknown partition."""
    from odradek.core.ids import OffsetAndMetadata
    from odradek.lag import reset as resets
    from odradek.zookeeper.bounds import cluster_logs

    stored = store.read(group)
    if not stored.offsets:
        check_visible(group, "--group")
    chosen = sorted(stored.offsets) if line.all_topics else _chosen(admin, line.topic or [])
    logs = cluster_logs(admin, chosen, scenario)
    for reason in logs.unknown.values():
        raise CommandError(reason)
    committed = {tp: OffsetAndMetadata(offset) for tp, offset in stored.next_offsets().items()}
    wished = resets.targets(scenario, group, chosen, committed, logs.logs)
    rows = resets.rows(scenario, wished, committed, logs.logs)
    for row in rows:
        if row.clamped_from is not None:
            message = f"offset {row.clamped_from} of {row.topic}-{row.partition} is outside the log"
            warning_lines(f"Warning: {message}: {row.after} is used.")
    return {(row.topic, row.partition): row.after for row in rows}


def _chosen(admin: Admin, arguments: list[str]) -> Collection[TopicPartition]:
    from odradek.core.ids import TopicPartition

    topics, single = parse_partitions(arguments)
    whole = [tp for topic in topics for tp in admin.partitions(topic)]
    return sorted({*whole, *(TopicPartition(*tp) for tp in single)})
