"""``odradek zookeeper migrate``: copies the offsets of groups from ZooKeeper to Kafka, or back."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from odradek.cli.option_fields import of_fields
from odradek.cli.options import given_names, table_or_blocks
from odradek.cli.terminal import (
    EXIT_FAILED,
    CommandError,
    error_line,
    note,
    note_table,
    print_json,
    progress,
    warning_lines,
)
from odradek.cli.undo_file import pasted, write_undo
from odradek.cli.zookeeper.scope import (
    AllGroups,
    Execute,
    Groups,
    KafkaLine,
    Names,
    UndoFile,
    ZooKeeperLine,
    check_scope,
    known_groups,
    named_groups,
)
from odradek.core.counts import counted

if TYPE_CHECKING:
    from odradek.client.admin import Admin
    from odradek.zookeeper.migration import GroupMigration, MigrationRules
    from odradek.zookeeper.store import OffsetStore

EPILOG = (
    "Examples:\n\n\b\n"
    "  odradek zookeeper migrate --to kafka --group billing -z 127.0.0.1:2181 -b 127.0.0.1:9092\n"
    "  odradek zookeeper migrate --to kafka --all-groups --on-conflict largest --execute \\\n"
    "      -z 127.0.0.1:2181/kafka -b 127.0.0.1:9092"
)
_TYPES = ("", "classic", "consumer")
"""The types of groups with committed offsets. Brokers that do not report types give ""."""
_HEAD = ("GROUP", "TOPIC", "PARTITION", "SOURCE", "BEFORE", "AFTER")


@dataclass(frozen=True, kw_only=True)
class MigrateLine(KafkaLine):
    """The options of the command."""

    to: Annotated[str, typer.Option("--to", metavar="kafka|zookeeper", help="The store that is written.")]
    names: Names = None
    group: Groups = None
    all_groups: AllGroups = False
    on_conflict: Annotated[
        str,
        typer.Option(
            "--on-conflict",
            metavar="fail|source|target|largest",
            help="If the stores have different offsets: fail refuses the group; the others name the offset to write.",
        ),
    ] = "fail"
    skip_invalid: Annotated[
        bool, typer.Option("--skip-invalid", help="Leave out znodes and offsets from which no consumer can continue.")
    ] = False
    execute: Execute = False
    undo_file: UndoFile = None

    def rules(self) -> MigrationRules:
        """Returns the rules of the options. Raises CommandError."""
        from odradek.zookeeper.migration import CONFLICT_RULES, MigrationRules

        if self.to not in ("kafka", "zookeeper"):
            raise CommandError(f"--to {self.to!r}: expected kafka or zookeeper")
        if self.on_conflict not in CONFLICT_RULES:
            raise CommandError(f"--on-conflict {self.on_conflict!r}: one of {', '.join(CONFLICT_RULES)}")
        return MigrationRules(self.to, self.on_conflict, self.skip_invalid)  # type: ignore[arg-type]  # checked above


@of_fields(ZooKeeperLine)
def migrate(line: MigrateLine) -> None:
    """Copy the offsets of groups without live members to the other store. The source stays as it is.

    Shows the offsets before and after. With --execute the command first writes the target's present offsets to an undo
    file. Then it writes the offsets of each group together, reads them back and compares them. If a run was killed, the
    next run completes it.
    """
    rules = line.rules()
    check_scope(named_groups(line), line.all_groups)
    with line.admin("Kafka is the other store") as admin, line.store() as store:
        plans = _plans(store, admin, line, rules)
        if not line.as_json:
            _show(plans)
        ready = [plan for plan in plans if _is_ready(plan)]
        undo: Path | None = None
        failures: list[str] = []
        done: list[GroupMigration] = []
        if line.execute and ready:
            undo = write_undo(_undo_text(ready), line.undo_file, "csv" if rules.to == "kafka" else "txt")
            done, failures = _execute(store, admin, ready)
        if line.as_json:
            print_json(_as_json(plans, done, undo, failures), indent=2)
        else:
            _report(line, admin, plans, done, undo)
    for refusal in [refusal for plan in plans for refusal in plan.refusals]:
        error_line(refusal)
    for failure in failures:
        error_line(failure)
    if failures or any(plan.refusals for plan in plans):
        raise typer.Exit(EXIT_FAILED)


def _plans(store: OffsetStore, admin: Admin, line: MigrateLine, rules: MigrationRules) -> list[GroupMigration]:
    from odradek.zookeeper import migration

    names = given_names(named_groups(line), "--group")
    if line.all_groups:
        kafkas = [row.group_id for row in admin.list_groups() if row.type.lower() in _TYPES]
        names = sorted(store.groups() if rules.to == "kafka" else kafkas)
    elif rules.to == "kafka":
        names = known_groups(store, names)
    plans = []
    with progress("Reading both stores", len(names), "groups") as advance:
        for name in names:
            plans.append(migration.plan(store, admin, name, rules))
            if rules.to == "zookeeper" and not line.all_groups and _is_empty(plans[-1]):
                raise CommandError(f"Kafka has no offsets of group {name}: odradek groups list shows the groups")
            advance(1)
    return plans


def _is_ready(plan: GroupMigration) -> bool:
    """Returns whether the plan has offsets to write and no refusal."""
    return bool(plan.written and not plan.refusals)


def _is_empty(plan: GroupMigration) -> bool:
    """Returns whether the source has nothing of the group."""
    return not (plan.rows or plan.skipped or plan.refusals)


def _execute(store: OffsetStore, admin: Admin, ready: list[GroupMigration]) -> tuple[list[GroupMigration], list[str]]:
    """Writes the offsets of the groups and reads them back.

    Returns the written groups, and a line for each error and each difference."""
    from odradek.core.errors import OdradekError
    from odradek.zookeeper import migration

    done, failures = [], []
    with progress("Migrating", len(ready), "groups") as advance:
        for plan in ready:
            try:
                migration.execute(store, admin, plan)
                done.append(plan)
                failures += [f"group {plan.group}: {line}" for line in migration.differences(store, admin, plan)]
            except OdradekError as error:
                failures.append(f"group {plan.group}: {error}")
            advance(1)
    return done, failures


def _undo_text(ready: list[GroupMigration]) -> str:
    """Returns the target's old offsets in the written partitions, as input of groups reset or zookeeper import."""
    if ready[0].to == "kafka":
        from odradek.lag import reset_csv

        before = {plan.group: {r.tp: r.target for r in plan.written if r.target is not None} for plan in ready}
        return reset_csv.export(before, with_group=True)
    from odradek.zookeeper.export_file import format_offsets
    from odradek.zookeeper.store import StoredOffsets

    return format_offsets(
        StoredOffsets(plan.group, {r.tp: plan.seen[r.tp] for r in plan.written if r.tp in plan.seen}) for plan in ready
    )


def _show(plans: list[GroupMigration]) -> None:
    cells = [
        (
            plan.group,
            row.tp.topic,
            str(row.tp.partition),
            str(row.source),
            "-" if row.target is None else str(row.target),
            str(row.after),
        )
        for plan in plans
        for row in plan.rows
    ]
    if cells:
        note_table(table_or_blocks(_HEAD, cells, right=frozenset({2, 3, 4, 5})))
    for plan in plans:
        if _is_empty(plan):
            note(f"Group {plan.group}: no offsets in the source.")
        for one in plan.skipped:
            warning_lines(f"{one.where}: {one.reason}")
        if plan.only_in_target:
            note(f"Group {plan.group}: {counted(len(plan.only_in_target), 'partition')} only in the target: unchanged.")


def _report(
    line: MigrateLine, admin: Admin, plans: list[GroupMigration], done: list[GroupMigration], undo: Path | None
) -> None:
    """Prints what was written. ``done``: the written groups."""
    ready = [plan for plan in plans if _is_ready(plan)]
    if not plans:
        note("No groups.")
    elif not ready and any(plan.refusals for plan in plans):
        note("Nothing was written.")
    elif not ready:
        has_rows = any(plan.rows for plan in plans)
        note("Nothing to write: the target has these offsets." if has_rows else "Nothing to write.")
    elif undo is None:
        note("Nothing was written: add --execute.")
    else:
        store = "Kafka" if line.to == "kafka" else "ZooKeeper"
        count = sum(len(plan.written) for plan in done)
        note(f"Wrote {counted(count, 'offset')} of {counted(len(done), 'group')} to {store}.")
        if any(row.target is not None for plan in ready for row in plan.written):
            note(f"Undo: {_undo_command(line, undo)}")
    if ready:
        note(*(_expiry_lines(admin) if line.to == "kafka" else _not_copied_lines(plans)))


def _undo_command(line: MigrateLine, undo: Path) -> str:
    if line.to == "zookeeper":
        return line.undo_command(undo)
    return pasted(
        "odradek", "groups", "reset", "--from-file", undo, "--execute", b=line.bootstrap,
        command_config=line.command_config,
    )  # fmt: skip


def _expiry_lines(admin: Admin) -> list[str]:
    from odradek.zookeeper.migration import retention_minutes

    minutes = retention_minutes(admin)
    end = (datetime.now(UTC) + timedelta(minutes=minutes)).strftime("%Y-%m-%dT%H:%M:%SZ")
    return [
        f"In Kafka the offsets of a group without members expire after {minutes} minutes (offsets.retention.minutes).",
        f"Start its consumers before {end}. In ZooKeeper the offsets never expired.",
    ]


def _not_copied_lines(plans: list[GroupMigration]) -> list[str]:
    left_behind = [one for plan in plans for one in plan.left_behind.values()]
    texts = sum(bool(one.metadata) for one in left_behind)
    epochs = sum(one.leader_epoch >= 0 for one in left_behind)
    return [
        "ZooKeeper stores the offset only. Not copied: the time of each commit, "
        f"{counted(texts, 'metadata text')} and {counted(epochs, 'leader epoch')}."
    ]


def _as_json(
    plans: list[GroupMigration], done: list[GroupMigration], undo: Path | None, failures: list[str]
) -> dict[str, object]:
    return {
        "to": plans[0].to if plans else None,
        "undo_file": str(undo) if undo else None,
        "failures": failures,
        "groups": [
            {
                "group": plan.group,
                "written": any(plan is one for one in done),
                "refusals": list(plan.refusals),
                "skipped": [one._asdict() for one in plan.skipped],
                "only_in_target": [tp._asdict() for tp in plan.only_in_target],
                "offsets": [
                    {**row.tp._asdict(), "source": row.source, "before": row.target, "after": row.after}
                    for row in plan.rows
                ],
            }
            for plan in plans
        ],
    }
