"""``odradek groups``: consumer groups of any Kafka; what changes offsets has modules of its own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from odradek.cli.options import (
    CONTEXT,
    TIMEOUT_MS,
    AsJson,
    Bootstrap,
    CommandConfig,
    Timeout,
    connect,
    fitting,
    names_given,
    parse_partitions,
    terminal_columns,
)
from odradek.cli.terminal import (
    EXIT_FAILED,
    CommandError,
    ask,
    error_line,
    note,
    note_table,
    print_json,
    progress,
    warning_lines,
)
from odradek.core.printable import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from odradek.client.admin import Admin
    from odradek.client.model import GroupDescription
    from odradek.lag.describe import LagRow

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings=CONTEXT,
    help="Consumer groups of any Kafka.",
    epilog="Example:\n\n\b\n  odradek groups describe --group flight-lake -b 127.0.0.1:9092",
)

Groups = Annotated[list[str] | None, typer.Option("--group", metavar="GROUP", help="The group. Repeatable.")]
AllGroups = Annotated[bool, typer.Option("--all-groups", help="Every group of the cluster.")]


def _check_scope(groups: list[str] | None, all_groups: bool) -> None:
    """Raises CommandError unless exactly one way of naming groups was used, with names that can be."""
    if bool(groups) == all_groups:
        raise CommandError("missing option '--group' or '--all-groups'" if not groups else "--group or --all-groups")
    names_given(groups or [], "--group")


def _chosen(admin: Admin, groups: list[str] | None, all_groups: bool) -> list[str]:
    """The groups a command is about."""
    return [row.group_id for row in admin.list_groups()] if all_groups else names_given(groups or [], "--group")


@app.command(
    epilog="Examples:\n\n\b\n"
    "  odradek groups describe --group flight-lake -b 127.0.0.1:9092\n"
    "  odradek groups describe --group a --group b -b broker-1:9092,broker-2:9092 --json",
)
def describe(
    *,
    bootstrap: Bootstrap,
    group: Groups = None,
    all_groups: AllGroups = False,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
    timeout_ms: Timeout = TIMEOUT_MS,
) -> None:
    """Show what groups have committed and how far they are behind, as kafka-consumer-groups --describe does.

    CURRENT-OFFSET is the next record to read, LAG how many there are from it to the end of the log; "-" where
    there is none.
    """
    from odradek import lag

    _check_scope(group, all_groups)
    with connect(bootstrap, timeout_ms, command_config) as admin:
        names = _chosen(admin, group, all_groups)
        with progress("Describing", len(names), "groups") as advance:
            found = []
            for name in names:
                found.append(lag.describe(admin, name))
                advance(1)
    if as_json:
        print_json([_as_json(one) for one in found], indent=2)
        return
    for one in found:
        said = lag.notice(one.group, one.state)
        if said is not None:
            warning_lines("", said)
        if one.rows:
            note_table(_table(one.rows), "")
        for line in lag.lost_notices(one):
            warning_lines(line)


def _table(rows: Sequence[LagRow]) -> str:
    """Kafka's layout; in a terminal that this does not fit into, a heading and what differs from row to row."""
    from odradek import lag

    table, width = lag.format_table(rows), terminal_columns()
    if width is None or all(len(line) <= width for line in table.splitlines()):
        return table
    head = ("TOPIC", "PARTITION", "CURRENT", "LOG-END", "LAG", "CLIENT-ID")
    cells = [
        tuple("-" if cell is None else str(cell) for cell in (*row[1:6], row.client_id))
        for row in sorted(rows, key=lambda row: (row.topic, row.partition))
    ]
    return f"Group {printable(rows[0].group)}\n{fitting(head, cells, right=frozenset({1, 2, 3, 4}))}"


def _as_json(one: Any) -> dict[str, Any]:
    rows = [{name: value for name, value in row._asdict().items() if name != "group"} for row in one.rows]
    for row in rows:
        lost = {tp.partition: start for tp, start in one.lost.items() if tp.topic == row["topic"]}
        if row["partition"] in lost:
            row["log_start_offset"] = lost[row["partition"]]
    return {"group": one.group, "state": one.state, "partitions": rows}


@app.command(
    name="list",
    epilog="Examples:\n\n\b\n"
    "  odradek groups list -b 127.0.0.1:9092\n"
    "  odradek groups list --state Stable -b 127.0.0.1:9092 --json",
)
def list_(
    *,
    bootstrap: Bootstrap,
    state: Annotated[list[str] | None, typer.Option(help="Only groups in this state (Stable, Empty, …).")] = None,
    kind: Annotated[list[str] | None, typer.Option("--type", help="Only this type: classic, consumer.")] = None,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
    timeout_ms: Timeout = TIMEOUT_MS,
) -> None:
    """List all groups of a cluster with their type and state."""
    from odradek import lag

    states = [_known(value, _STATES, "--state") for value in state or ()]
    kinds = [_known(value, _TYPES, "--type") for value in kind or ()]
    with connect(bootstrap, timeout_ms, command_config) as admin:
        groups = admin.list_groups(states=states, types=kinds)
    if as_json:
        rows = [
            {"group": g.group_id, "type": g.type, "state": g.state, "protocol_type": g.protocol_type} for g in groups
        ]
        print_json(rows, indent=2)
        return
    note_table(lag.format_groups(groups))


_STATES = ("Stable", "Empty", "Dead", "PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling")
_TYPES = ("classic", "consumer", "share", "streams")


def _known(value: str, known: tuple[str, ...], option: str) -> str:
    for name in known:
        if name.lower() == value.lower():
            return name
    raise CommandError(f"{option} {value!r}: one of {', '.join(known)}")


@app.command(
    epilog="Examples:\n\n\b\n"
    "  odradek groups locate flight-lake -b 127.0.0.1:9092\n"
    "  odradek groups locate flight-lake -b 127.0.0.1:9092 --json",
)
def locate(
    group: Annotated[str, typer.Argument(metavar="GROUP", help="The group; it need not exist.")],
    bootstrap: Bootstrap,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
    timeout_ms: Timeout = TIMEOUT_MS,
) -> None:
    """Show which partition of __consumer_offsets keeps a group, and which broker coordinates it.

    The partition is Java's hash of the group's name modulo the topic's actual number of partitions; the leader of
    that partition is the coordinator. The topic is made by the cluster if no group ever asked for it.
    """
    from odradek.core.ids import OFFSETS_TOPIC, partition_for_group

    names_given([group], "--group")
    with connect(bootstrap, timeout_ms, command_config) as admin:
        node = admin.coordinator(group)
        count = len(admin.describe_topics([OFFSETS_TOPIC])[OFFSETS_TOPIC].partitions)
    partition = partition_for_group(group, count)
    if as_json:
        coordinator = {"id": node.node_id, "host": node.host, "port": node.port}
        found = {"group": group, "topic": OFFSETS_TOPIC, "partition": partition, "partitions": count}
        print_json(found | {"coordinator": coordinator}, indent=2)
        return
    note(
        f"Group        {group}",
        f"Partition    {OFFSETS_TOPIC}-{partition} (of {count})",
        f"Coordinator  {node.host}:{node.port} (broker {node.node_id})",
    )


@app.command(
    epilog="Examples:\n\n\b\n"
    "  odradek groups members --group flight-lake -b 127.0.0.1:9092\n"
    "  odradek groups members --group flight-lake --verbose -b 127.0.0.1:9092",
)
def members(
    *,
    bootstrap: Bootstrap,
    group: Groups = None,
    all_groups: AllGroups = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show the partitions of each member.")] = False,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
    timeout_ms: Timeout = TIMEOUT_MS,
) -> None:
    """Show the live members of groups, and how many partitions each of them reads."""
    _check_scope(group, all_groups)
    with connect(bootstrap, timeout_ms, command_config) as admin:
        found = [admin.describe_groups([name])[name] for name in _chosen(admin, group, all_groups)]
    if as_json:
        print_json([_members_json(one) for one in found], indent=2)
        return
    for one in found:
        _print_members(one, verbose)


def _members_json(one: GroupDescription) -> dict[str, Any]:
    rows = [
        {
            "member_id": m.member_id, "instance_id": m.instance_id, "host": m.host, "client_id": m.client_id,
            "assignment": [str(tp) for tp in sorted(m.assignment)],
        }
        for m in one.members
    ]  # fmt: skip
    return {"group": one.group_id, "state": one.state, "members": rows}


def _print_members(one: GroupDescription, verbose: bool) -> None:
    from odradek import lag

    said = lag.notice(one.group_id, one.state)
    if said is not None:
        warning_lines("", said)
    if not one.members:
        return
    static = any(m.instance_id for m in one.members)
    head = ["GROUP", "CONSUMER-ID", *(["GROUP-INSTANCE-ID"] if static else []), "HOST", "CLIENT-ID", "#PARTITIONS"]
    rows = []
    for m in sorted(one.members, key=lambda m: (-len(m.assignment), m.member_id)):
        middle = [m.instance_id or "-"] if static else []
        rows.append((one.group_id, m.member_id, *middle, m.host, m.client_id, str(len(m.assignment))))
    note_table(fitting(tuple(head), rows), "")
    if verbose:
        for m in one.members:
            note(f"{m.member_id}: {', '.join(map(str, sorted(m.assignment))) or '-'}")


@app.command(
    epilog="Examples:\n\n\b\n"
    "  odradek groups state --group flight-lake -b 127.0.0.1:9092\n"
    "  odradek groups state --all-groups -b 127.0.0.1:9092 --json",
)
def state(
    *,
    bootstrap: Bootstrap,
    group: Groups = None,
    all_groups: AllGroups = False,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
    timeout_ms: Timeout = TIMEOUT_MS,
) -> None:
    """Show the state of groups, their coordinator and assignor, and how many members they have."""
    _check_scope(group, all_groups)
    with connect(bootstrap, timeout_ms, command_config) as admin:
        found = [admin.describe_groups([name])[name] for name in _chosen(admin, group, all_groups)]
    rows = [
        (
            g.group_id, f"{g.coordinator.host}:{g.coordinator.port} ({g.coordinator.node_id})", g.protocol or "-",
            g.state, str(len(g.members)),
        )
        for g in found
    ]  # fmt: skip
    if as_json:
        keys = ("group", "coordinator", "assignment_strategy", "state", "members")
        print_json([dict(zip(keys, (*row[:4], int(row[4])), strict=True)) for row in rows], indent=2)
        return
    note_table(fitting(("GROUP", "COORDINATOR (ID)", "ASSIGNMENT-STRATEGY", "STATE", "#MEMBERS"), rows))


Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


def confirm(question: str, yes: bool) -> bool:
    """Asks at the terminal. Raises CommandError where nobody is there to answer."""
    if yes:
        return True
    if not sys.stdin.isatty():
        raise CommandError(f"{question} Nobody to ask: add --yes")
    return ask(question)


@app.command(
    epilog="Examples:\n\n\b\n"
    "  odradek groups delete --group old-job -b 127.0.0.1:9092\n"
    "  odradek groups delete --group a --group b --yes -b 127.0.0.1:9092",
)
def delete(
    *,
    bootstrap: Bootstrap,
    group: Groups = None,
    all_groups: AllGroups = False,
    yes: Yes = False,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
    timeout_ms: Timeout = TIMEOUT_MS,
) -> None:
    """Delete groups without live members, with all their offsets."""
    from odradek.core.errors import KafkaError

    _check_scope(group, all_groups)
    failed: dict[str, KafkaError] = {}
    with connect(bootstrap, timeout_ms, command_config) as admin:
        names = _chosen(admin, group, all_groups)
        if not names or not confirm(f"Delete {', '.join(names)} with all offsets?", yes):
            return
        with progress("Deleting", len(names), "groups") as advance:
            for name in names:
                try:
                    admin.delete_groups([name])
                except KafkaError as error:
                    failed[name] = error
                advance(1)
    done = [name for name in names if name not in failed]
    if as_json:
        print_json({"deleted": done, "failed": {k: str(v) for k, v in failed.items()}}, indent=2)
    elif done:
        note(f"Deleted {', '.join(done)}.")
    if len(failed) == 1 and len(names) == 1:
        raise failed[names[0]]
    for refused in failed.values():
        error_line(str(refused))
    if failed:
        raise typer.Exit(EXIT_FAILED)


@app.command(
    name="delete-offsets",
    epilog="Examples:\n\n\b\n"
    "  odradek groups delete-offsets --group g --topic flights -b 127.0.0.1:9092\n"
    "  odradek groups delete-offsets --group g --topic flights:0,1 --yes -b 127.0.0.1:9092",
)
def delete_offsets(
    *,
    bootstrap: Bootstrap,
    group: Annotated[str, typer.Option("--group", metavar="GROUP", help="The group.")],
    topic: Annotated[list[str], typer.Option("--topic", metavar="TOPIC[:0,1]", help="Topic, or partitions of it.")],
    yes: Yes = False,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
    timeout_ms: Timeout = TIMEOUT_MS,
) -> None:
    """Forget a group's offsets in topics that none of its live members read."""
    from odradek.core.ids import TopicPartition

    names_given([group], "--group")
    topics, single = parse_partitions(topic)
    with connect(bootstrap, timeout_ms, command_config) as admin:
        chosen = {TopicPartition(*one) for one in single}
        for name in topics:
            chosen.update(admin.partitions(name))
        held = admin.list_group_offsets(group)
        gone = {tp: held[tp].offset for tp in sorted(chosen) if tp in held}
        what = ", ".join(f"{tp} ({offset})" for tp, offset in gone.items()) or "nothing"
        if gone and not confirm(f"Forget the offsets of group {group}: {what}?", yes):
            return
        admin.delete_group_offsets(group, sorted(chosen))
    if as_json:
        rows = [{"topic": tp.topic, "partition": tp.partition, "offset": offset} for tp, offset in gone.items()]
        print_json({"group": group, "deleted": rows}, indent=2)
    else:
        note(f"Group {group} forgot {what}.")


@app.command(
    epilog="Examples:\n\n\b\n"
    "  odradek groups reset --group g --topic flights --to-earliest -b 127.0.0.1:9092\n"
    "  odradek groups reset --group g --all-topics --shift-by -100 --dry-run -b 127.0.0.1:9092\n"
    "  odradek groups reset --group g --topic flights:0,1 --to-datetime 2026-01-31T12:00:00.000 \\\n"
    "      --execute -b 127.0.0.1:9092\n"
    "  odradek groups reset --group g --from-file odradek-undo-….csv --execute -b 127.0.0.1:9092",
)
def reset(
    *,
    bootstrap: Bootstrap,
    group: Groups = None,
    all_groups: AllGroups = False,
    topic: Annotated[
        list[str] | None, typer.Option("--topic", metavar="TOPIC[:0,1]", help="Topic, or partitions of it. Repeatable.")
    ] = None,
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="Every partition the group has an offset in.")
    ] = False,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the log start.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To the log end.")] = False,
    to_current: Annotated[bool, typer.Option("--to-current", help="To where it stands; the end if nowhere.")] = False,
    to_offset: Annotated[int | None, typer.Option("--to-offset", metavar="N", help="To one offset.")] = None,
    shift_by: Annotated[int | None, typer.Option("--shift-by", metavar="N", help="By N records; back if < 0.")] = None,
    to_datetime: Annotated[
        str | None,
        typer.Option("--to-datetime", metavar="TIME", help="To the first record since YYYY-MM-DDTHH:mm:SS.sss."),
    ] = None,
    by_duration: Annotated[
        str | None, typer.Option("--by-duration", metavar="PnDTnHnMnS", help="To the first record of the last so long.")
    ] = None,
    from_file: Annotated[
        Path | None,
        typer.Option("--from-file", metavar="CSV", help="To what a file says: [group,]topic,partition,offset."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would happen.")] = False,
    execute: Annotated[bool, typer.Option("--execute", help="Do it without asking.")] = False,
    export: Annotated[bool, typer.Option("--export", help="Print the new offsets as Kafka's CSV.")] = False,
    undo_file: Annotated[
        Path | None, typer.Option("--undo-file", metavar="CSV", help="Where to keep the offsets as they were.")
    ] = None,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
    timeout_ms: Timeout = TIMEOUT_MS,
) -> None:
    """Move the offsets of groups without live members, as kafka-consumer-groups --reset-offsets does.

    Shows before and after and asks. The offsets as they were go to an undo file, itself an input of --from-file.
    """
    from odradek.cli.reset import ResetOptions, run_reset, scenario_of

    if not (from_file and not group and not all_groups):
        _check_scope(group, all_groups)
    groups = names_given(group or [], "--group")
    scenario = scenario_of(
        to_earliest=to_earliest, to_latest=to_latest, to_current=to_current, to_offset=to_offset, shift_by=shift_by,
        to_datetime=to_datetime, by_duration=by_duration, from_file=from_file, groups=groups,
    )  # fmt: skip
    if dry_run and execute:
        raise CommandError("--dry-run and --execute exclude each other")
    if from_file is None and bool(topic) == all_topics:
        raise CommandError("which partitions: give --topic TOPIC[:0,1], once or more, or --all-topics")
    if from_file is not None and (topic or all_topics):
        raise CommandError("--from-file names its partitions itself: leave out --topic and --all-topics")
    parse_partitions(topic or [])
    options = ResetOptions(
        groups, all_groups, topic or [], all_topics, dry_run, execute, export, undo_file, as_json
    )  # fmt: skip
    with connect(bootstrap, timeout_ms, command_config) as admin:
        raise typer.Exit(run_reset(admin, scenario, options))
