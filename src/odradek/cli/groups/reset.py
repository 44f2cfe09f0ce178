"""``odradek groups reset``: plans and shows the reset, asks, writes an undo file, and commits."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from odradek.cli.groups.scope import AllGroups, Groups, Names, check_scope, consumer_groups
from odradek.cli.groups.zookeeper_offsets import GroupsInZooKeeper, groups_in_zookeeper
from odradek.cli.option_fields import of_fields
from odradek.cli.options import (
    TIMEOUT_MS,
    AsJson,
    Bootstrap,
    CommandConfig,
    Timeout,
    check_visible,
    connect,
    given_names,
    parse_partitions,
    table_or_blocks,
)
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
from odradek.cli.suggestions import LIST_GROUPS, group_names
from odradek.cli.terminal import (
    EXIT_BAD_INPUT,
    EXIT_FAILED,
    NO_NAME,
    CommandError,
    ask,
    error_line,
    note,
    note_table,
    print_data,
    print_json,
    progress,
    warning_lines,
)
from odradek.cli.undo_file import check_undo_file, pasted, write_undo
from odradek.core.counts import are, counted
from odradek.text.encodings import text_of_file

if TYPE_CHECKING:
    from odradek.client.admin import Admin
    from odradek.core.ids import TopicPartition
    from odradek.lag.reset import GroupResetPlan, ResetRow, Scenario
    from odradek.zookeeper.store import OffsetChange

NAMES_WIDTH = 60
_NO_ANSWER = "groups reset: {}: add --execute to reset, or --dry-run to only show the offsets"
EPILOG = (
    "Examples:\n\n\b\n"
    "  odradek groups reset g --topic flights --to-earliest -b 127.0.0.1:9092\n"
    "  odradek groups reset --group g --all-topics --shift-by -100 --dry-run -b 127.0.0.1:9092\n"
    "  odradek groups reset --group g --topic flights:0,1 --to-datetime 2026-01-31T12:00:00.000 \\\n"
    "      --execute -b 127.0.0.1:9092\n"
    "  odradek groups reset --group g --all-topics --to-latest --execute \\\n"
    "      --zookeeper-connect 127.0.0.1:2181 -b 127.0.0.1:9092\n"
    "  odradek groups reset new-group --topic flights --to-latest --create --execute -b 127.0.0.1:9092\n"
    "  odradek groups reset --group spark-query --topic flights --to-earliest --mark --execute -b 127.0.0.1:9092\n"
    "  odradek groups reset --group g --from-file odradek-undo-20260131.csv --execute -b 127.0.0.1:9092"
)


@dataclass(frozen=True, kw_only=True)
class ResetLine:
    """The options of the command."""

    names: Names = None
    bootstrap: Bootstrap
    group: Groups = None
    all_groups: AllGroups = False
    topic: ResetTopic = None
    all_topics: AllTopics = False
    to_earliest: ToEarliest = False
    to_latest: ToLatest = False
    to_current: Annotated[
        bool, typer.Option("--to-current", help="To the committed offset, or without one to the log end.")
    ] = False
    to_offset: ToOffset = None
    shift_by: ShiftBy = None
    to_datetime: ToDatetime = None
    by_duration: ByDuration = None
    from_file: Annotated[
        Path | None,
        typer.Option("--from-file", metavar="CSV", help="To the offsets in a file: [group,]topic,partition,offset."),
    ] = None
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the new offsets.")] = False
    execute: Annotated[bool, typer.Option("--execute", help="Reset without asking.")] = False
    export: Annotated[bool, typer.Option("--export", help="Print the new offsets in Kafka's CSV form.")] = False
    create: Annotated[
        bool, typer.Option("--create", help="Create a group that does not exist, as kafka-consumer-groups does.")
    ] = False
    mark: Annotated[
        bool, typer.Option("--mark", help="Mark the commits, so that a Spark query of the group follows the reset.")
    ] = False
    undo_file: Annotated[
        Path | None, typer.Option("--undo-file", metavar="CSV", help="File for the previous offsets.")
    ] = None
    zookeeper_connect: Annotated[
        str | None,
        typer.Option(
            "--zookeeper-connect",
            metavar="HOST:PORT[,HOST:PORT][/CHROOT]",
            help="Also move the offsets in ZooKeeper, for groups that commit to Kafka and ZooKeeper.",
        ),
    ] = None
    command_config: CommandConfig = None
    as_json: AsJson = False
    timeout_ms: Timeout = TIMEOUT_MS

    def groups(self) -> list[str]:
        """Returns the groups that are named. Raises CommandError."""
        return given_names([*(self.names or []), *(self.group or [])], "--group", allow_empty=True)


@of_fields()
def reset(line: ResetLine) -> None:
    """Move the offsets of groups without live members, as kafka-consumer-groups --reset-offsets does.

    Shows the offsets before and after, and asks. The previous offsets are written to an undo file, which --from-file
    can read. A group that does not exist is created only with --create: its name may be a slip. With
    --zookeeper-connect the offsets in ZooKeeper get the same values: consumers that commit to both resume at the larger
    offset.
    """
    if not (line.from_file and not line.groups() and not line.all_groups):
        check_scope(line.group, line.all_groups, line.names, allow_empty=True)
    scenario = scenario_of(line)
    if line.as_json and not (line.execute or line.dry_run or line.export):
        raise CommandError(_NO_ANSWER.format("--json asks no question"))
    if line.dry_run and line.execute:
        raise CommandError("--dry-run and --execute cannot be used together")
    if line.from_file is None:
        check_partitions(line.topic, line.all_topics)
    elif line.topic or line.all_topics:
        raise CommandError("the file of --from-file contains the partitions: omit --topic and --all-topics")
    parse_partitions(line.topic or [])
    check_undo_file(line.undo_file)
    with (
        connect(line.bootstrap, line.timeout_ms, line.command_config) as admin,
        groups_in_zookeeper(line.zookeeper_connect) as zookeeper,
    ):
        raise typer.Exit(run_reset(admin, scenario, line, zookeeper))


def scenario_of(line: ResetLine) -> Scenario:
    """Returns the scenario of the options. Raises CommandError for none or several, ConfigError for a wrong value."""
    from odradek.lag import reset as resets
    from odradek.lag import reset_csv

    given = targets_of(line)
    target = only_target(given, "groups reset")
    if line.from_file is not None:
        text = text_of_file(line.from_file, "--from-file")
        return resets.Scenario(target, offsets=reset_csv.parse(text, line.groups(), f"--from-file {line.from_file}"))
    return scenario_for(target, given[target])


def run_reset(admin: Admin, scenario: Scenario, line: ResetLine, zookeeper: GroupsInZooKeeper | None = None) -> int:
    """Plans and shows the reset, asks unless an option answers, and commits it. Returns the exit code."""
    plans, has_failed = _plans(admin, scenario, line, zookeeper)
    missing = _report_missing(admin, plans, line)
    live = _report_live(plans, zookeeper)
    ready = [plan for plan in plans if plan not in live and plan not in missing and plan.rows]
    quiet = line.export or line.as_json
    if not quiet and len(missing) < len(plans):
        note(*time_of(scenario))
        _show(plans, missing)
    for plan in plans:
        if plan.left_out and plan not in missing:
            warning_lines(f"Warning: {_shown_group(plan.group)}: left out, because {_below_0(plan)}.")
    for plan in ready:
        _warn_of_clamps(plan)
        _warn_of_query(plan, line)
    code = EXIT_FAILED if live or has_failed else EXIT_BAD_INPUT if missing else 0
    undo: Path | None = None
    if ready and _is_confirmed(ready, line):
        moves = {plan.group: zookeeper.changes(plan) for plan in ready} if zookeeper else {}
        undo = _write_undo(ready, line.undo_file)
        if zookeeper is not None:
            _move_in_zookeeper(zookeeper, moves, undo, quiet=quiet)
        done = _commit(admin, ready, undo, line)
        code = code if len(done) == len(ready) else EXIT_FAILED
        ready = done
    if line.export:
        from odradek.lag import reset_csv

        named = len(line.groups()) == 1
        exported = {plan.group: {} if plan in live else _after(plan) for plan in plans}
        print_data(reset_csv.export(exported, with_group=not named))
    elif line.as_json:
        print_json([_as_json(plan, plan in ready and undo is not None, undo) for plan in plans], indent=2)
    return code


def _report_missing(admin: Admin, plans: list[GroupResetPlan], line: ResetLine) -> list[GroupResetPlan]:
    """Prints an error for each named group that has nothing to reset or does not exist.

    Returns the plans with an error. Kafka's tool creates a group that does not exist, which hides a slip in its name:
    here that needs --create. Where nothing is written, a warning is enough."""
    from odradek.text.similar_names import nearest

    missing = []
    for plan in plans:
        if line.all_groups or not _resettable(plan) or (plan.rows and plan.state != "Dead"):
            continue
        if plan.state == "Dead" and not plan.group:  # for example a variable of a script that is not set
            error_line("--group: no group has an empty name, and a reset creates none: give a group's name")
        elif plan.state == "Dead":
            check_visible(plan.group, "--group")
            known = group_names(admin)
            meant = nearest(plan.group, known)
            if plan.rows and line.create:
                continue
            if plan.rows and (line.dry_run or (line.export and not line.execute)):
                warning_lines(
                    f"Warning: group {plan.group} does not exist{meant}: a reset needs --create to create it."
                )
                continue
            if plan.rows:
                error_line(f"group {plan.group} does not exist{meant}: add --create to create it")
            else:
                remedy = "" if meant else f": {LIST_GROUPS}"
                error_line(f"group {plan.group} does not exist{meant}: it has no offsets to reset{remedy}")
        elif plan.left_out:
            error_line(f"{_shown_group(plan.group)} has no committed offset to shift from: {_below_0(plan)}: give "
                       "another target, for example --to-earliest")  # fmt: skip
        else:
            error_line(f"{_shown_group(plan.group)} has no committed offsets: name the topics with --topic TOPIC[:0,1]")
        missing.append(plan)
    return missing


def _report_live(plans: list[GroupResetPlan], zookeeper: GroupsInZooKeeper | None) -> list[GroupResetPlan]:
    """Prints an error for each group that cannot be reset because of live members. Returns their plans."""
    live = []
    for plan in plans:
        if not _resettable(plan):
            error_line(
                f"group {plan.group} is {plan.state}: stop its members first; offsets of live groups cannot be reset"
            )
            live.append(plan)
        elif zookeeper is not None and (names := zookeeper.live_members(plan.group)):
            error_line(f"group {plan.group} has live members in ZooKeeper: {', '.join(names)}: stop them first")
            live.append(plan)
    return live


def _move_in_zookeeper(
    zookeeper: GroupsInZooKeeper, moves: dict[str, list[OffsetChange]], undo: Path, *, quiet: bool
) -> None:
    """Writes the offsets in ZooKeeper, before those in Kafka: if ZooKeeper refuses, Kafka's offsets are unchanged."""
    changes = [change for group in moves.values() for change in group]
    undo_there = zookeeper.write_undo(changes, undo)
    for of_group in moves.values():
        zookeeper.write(of_group)
    if not quiet and changes:
        note(f"Moved {counted(len(changes), 'offset')} in ZooKeeper.")
        if undo_there is not None:
            note(f"Undo in ZooKeeper: {zookeeper.undo_command(undo_there)}")


def _plans(
    admin: Admin, scenario: Scenario, line: ResetLine, zookeeper: GroupsInZooKeeper | None
) -> tuple[list[GroupResetPlan], bool]:
    """Returns the plans, and whether there is none for a group because of an error, which is printed."""
    from odradek.client.errors import UnknownTopic
    from odradek.core.errors import KafkaError
    from odradek.core.ids import TopicPartition
    from odradek.lag import reset as resets
    from odradek.lag.reset_targets import ResetTarget

    topics, single = parse_partitions(line.topic or [])
    named = line.groups() or ([] if line.all_groups else sorted(scenario.offsets))
    groups, failed = consumer_groups(admin, named, line.all_groups)
    for group in groups:
        if scenario.kind is ResetTarget.FROM_FILE and group not in scenario.offsets and not line.all_groups:
            has = ", ".join(sorted(scenario.offsets)[:5]) or "none"
            raise CommandError(
                f"--from-file {line.from_file}: it has no row for group {group}; its groups: {has}: "
                "name one of them, or leave --group out"
            )
    made = []
    with progress("Looking up offsets", len(groups), "groups") as advance:
        for group in groups:
            elsewhere = zookeeper.offsets(group) if zookeeper else None
            try:
                made.append(
                    resets.plan(
                        admin, group, scenario, topics=topics, partitions=[TopicPartition(*tp) for tp in single],
                        all_topics=line.all_topics, elsewhere=elsewhere,
                    )
                )  # fmt: skip
            except KafkaError as error:
                if (len(groups) == 1 and not failed) or isinstance(error, UnknownTopic):
                    raise
                error_line(f"{_shown_group(group)} is not reset: {error}")
            advance(1)
    return made, bool(failed) or len(made) < len(groups)


def _below_0(plan: GroupResetPlan) -> str:
    """Returns the clause that names the partitions which a shift leaves out."""
    names = ", ".join(map(str, plan.left_out))
    return f"the commit{'s' if len(plan.left_out) > 1 else ''} in {names} {are(0, len(plan.left_out))} below 0"


def _shown_group(group: str) -> str:
    from odradek.client.errors import shown_group

    return shown_group(group)


def _resettable(plan: GroupResetPlan) -> bool:
    from odradek.lag.reset import RESETTABLE

    return plan.state in RESETTABLE


def _after(plan: GroupResetPlan) -> dict[TopicPartition, int]:
    from odradek.core.ids import TopicPartition as Tp

    return {Tp(row.topic, row.partition): row.after for row in plan.rows}


def show_plan(plan: GroupResetPlan) -> None:
    """Prints the offsets of a plan before and after, and its effect."""
    _show([plan], [])


def _show(plans: list[GroupResetPlan], missing: list[GroupResetPlan]) -> None:
    for plan in plans:
        if plan in missing:
            continue
        if not plan.rows:
            note(f"Group {plan.group or NO_NAME}: nothing to reset.")
            continue
        lines = [
            (
                row.topic,
                str(row.partition),
                _shown(row.before),
                *([] if plan.elsewhere is None else [_shown(_elsewhere(plan, row))]),
                str(row.after),
                _effect(row, _elsewhere(plan, row)),
            )
            for row in sorted(plan.rows)
        ]
        both = plan.elsewhere is not None
        head = ("TOPIC", "PARTITION", *(["KAFKA", "ZOOKEEPER"] if both else ["BEFORE"]), "AFTER", "RECORDS")
        again = -sum(row.distance for row in plan.rows if row.distance < 0)
        skipped = sum(row.distance for row in plan.rows if row.distance > 0)
        note_table(
            table_or_blocks(head, lines, right=frozenset(range(1, len(head) - 1))), "", f"Group {plan.group or NO_NAME}"
        )
        note(f"Total: {counted(again, 'record')} read again, {skipped:,} skipped.")


def _shown(offset: int | None) -> str:
    return "-" if offset is None else str(offset)


def _elsewhere(plan: GroupResetPlan, row: ResetRow) -> int | None:
    from odradek.core.ids import TopicPartition

    return (plan.elsewhere or {}).get(TopicPartition(row.topic, row.partition))


def _effect(row: ResetRow, elsewhere: int | None) -> str:
    before = max((offset for offset in (row.before, elsewhere) if offset is not None), default=None)
    if before is None:
        return f"first, skips {row.distance:,}" if row.distance else "first offset"
    if row.distance < 0:
        return f"reads {-row.distance:,} again"
    return f"skips {row.distance:,}" if row.distance else "unchanged" if before == row.after else "none"


def _warn_of_clamps(plan: GroupResetPlan) -> None:
    for row in plan.rows:
        if row.clamped_from is not None:
            edge = "starts" if row.clamped_from < row.after else "ends"
            message = f"offset {row.clamped_from} of {row.topic}-{row.partition} is outside the log, which {edge} at"
            warning_lines(f"Warning: {message} {row.after}: {row.after} is used.")


def _warn_of_query(plan: GroupResetPlan, line: ResetLine) -> None:
    if plan.is_of_query and not line.mark and (line.execute or not line.export):
        warning_lines(
            f"Warning: a Spark query has made the commits of group {plan.group}. Unless it has onGroupReset=follow, it "
            "overwrites this reset. Add --mark: the query then follows the reset."
        )


def _is_confirmed(ready: list[GroupResetPlan], line: ResetLine) -> bool:
    """Returns whether an option or the user allows the reset.

    If it has to ask, raises CommandError without a terminal."""
    if line.execute:
        return True
    if line.dry_run or line.export:
        return False
    if not sys.stdin.isatty():
        raise CommandError(_NO_ANSWER.format("no terminal to ask at"))
    return ask(f"Reset {_group_names([plan.group for plan in ready])}?")


def _group_names(groups: list[str]) -> str:
    """Returns the names of the groups, or their number if the names are too long for a line of a terminal."""
    names = ", ".join(group or NO_NAME for group in groups)
    return names if len(groups) == 1 or len(names) <= NAMES_WIDTH else counted(len(groups), "group")


def _write_undo(ready: list[GroupResetPlan], given: Path | None) -> Path:
    """Writes the previous offsets, as input of --from-file, to the disk before anything changes."""
    from odradek.core.ids import TopicPartition
    from odradek.lag import reset_csv

    before = {
        plan.group: {
            TopicPartition(row.topic, row.partition): row.before for row in plan.rows if row.before is not None
        }
        for plan in ready
    }
    return write_undo(reset_csv.export(before, with_group=len(ready) > 1), given, "csv")


def _commit(admin: Admin, ready: list[GroupResetPlan], undo: Path, line: ResetLine) -> list[GroupResetPlan]:
    """Commits the offsets, and returns the plans of the groups that are reset: each group fails alone.

    Prints how to undo that, with --export to stderr, unless stdout is for a program.
    """
    from odradek.core.errors import KafkaError

    done: list[GroupResetPlan] = []
    with progress("Resetting", len(ready), "groups") as advance:
        for plan in ready:
            try:
                admin.alter_group_offsets(plan.group, plan.commits(mark=line.mark))
            except KafkaError as error:
                if len(ready) == 1:
                    raise
                error_line(f"{_shown_group(plan.group)} is not reset: {error}")
                continue
            except Exception:
                if done:
                    error_line(f"already reset: {', '.join(one.group for one in done)} (undo file {undo})")
                raise
            done.append(plan)
            advance(1)
    if done and not line.as_json:
        say = warning_lines if line.export else note
        say(f"Reset {_group_names([plan.group for plan in done])}.", *undo_lines(ready, done, undo, line))
    return done


def undo_lines(ready: list[GroupResetPlan], done: list[GroupResetPlan], undo: Path, line: ResetLine) -> list[str]:
    """Returns the lines that say how to undo the reset."""
    here: dict[str, str | Path | None] = {"b": line.bootstrap, "command_config": line.command_config}
    lines = []
    if any(row.before is not None for plan in ready for row in plan.rows) and undo.is_file():
        single = ["--group", ready[0].group] if len(ready) == 1 else []
        lines.append("Undo: " + pasted("odradek", "groups", "reset", *single, "--from-file", undo, "--execute", **here))
    for plan in done:
        if new := _new_partitions(plan):
            command = pasted("odradek", "groups", "delete-offsets", "--group", plan.group, *new, **here)
            lines.append(f"These had no offset before; to undo: {command}")
    return lines


def _new_partitions(plan: GroupResetPlan) -> list[str]:
    """Returns the options that name the partitions that had no offset, for each topic its partitions together."""
    numbers: dict[str, list[int]] = {}
    for row in plan.rows:
        if row.before is None:
            numbers.setdefault(row.topic, []).append(row.partition)
    return [
        word
        for topic, partitions in sorted(numbers.items())
        for word in ("--topic", f"{topic}:{','.join(map(str, sorted(partitions)))}")
    ]


def _as_json(plan: GroupResetPlan, done: bool, undo: Path | None) -> dict[str, object]:
    rows = [{name: value for name, value in row._asdict().items() if name != "log_start"} for row in plan.rows]
    if plan.elsewhere is not None:
        rows = [made | {"zookeeper_before": _elsewhere(plan, row)} for made, row in zip(rows, plan.rows, strict=True)]
    file = str(undo) if done and undo is not None else None
    return {"group": plan.group, "state": plan.state, "reset": done, "undo_file": file, "partitions": rows}
