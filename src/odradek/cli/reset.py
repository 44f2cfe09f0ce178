"""``odradek groups reset``: plan, show, ask, keep an undo file, commit."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from odradek.cli.options import fitting, parse_partitions
from odradek.cli.terminal import (
    EXIT_FAILED,
    CommandError,
    ask,
    counted,
    error_line,
    note,
    note_table,
    print_data,
    print_json,
    progress,
    warning_lines,
)

if TYPE_CHECKING:
    from odradek.client.admin import Admin
    from odradek.core.ids import TopicPartition
    from odradek.lag.reset import GroupReset, ResetRow, Scenario

NAMES_WIDTH = 60


class ResetOptions(NamedTuple):
    """The command's line. ``groups`` empty with ``all_groups`` means every group of the cluster."""

    groups: list[str]
    all_groups: bool
    topics: list[str]
    all_topics: bool
    dry_run: bool
    execute: bool
    export: bool
    undo_file: Path | None
    as_json: bool


def scenario_of(
    *, to_earliest: bool, to_latest: bool, to_current: bool, to_offset: int | None, shift_by: int | None,
    to_datetime: str | None, by_duration: str | None, from_file: Path | None, groups: Sequence[str],
) -> Scenario:  # fmt: skip
    """The one scenario among the options. Raises CommandError for none or several, ConfigError for an ill value."""
    from odradek.lag import reset, reset_csv

    given = {
        "to-earliest": to_earliest or None, "to-latest": to_latest or None, "to-current": to_current or None,
        "to-offset": to_offset, "shift-by": shift_by, "to-datetime": to_datetime, "by-duration": by_duration,
        "from-file": from_file,
    }  # fmt: skip
    chosen = [name for name, value in given.items() if value is not None]
    if len(chosen) != 1:
        what = " and ".join(f"--{name}" for name in chosen) + " exclude each other" if chosen else "where to"
        raise CommandError(f"groups reset: {what}: give one of {', '.join('--' + name for name in given)}")
    kind = chosen[0]
    if from_file is not None:
        try:
            text = from_file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
            raise CommandError(f"--from-file {from_file}: {reason}") from error
        return reset.Scenario(kind, offsets=reset_csv.parse(text, groups, str(from_file)))
    if to_datetime is not None:
        return reset.Scenario(kind, reset.datetime_ms(to_datetime))
    if by_duration is not None:
        return reset.Scenario(kind, time.time_ns() // 1_000_000 - reset.duration_ms(by_duration))
    return reset.Scenario(kind, to_offset if to_offset is not None else shift_by or 0)


def run_reset(admin: Admin, scenario: Scenario, options: ResetOptions) -> int:
    """Plans and shows the reset, asks unless told, does it. Returns the exit code."""
    plans = _plans(admin, scenario, options)
    live = [plan for plan in plans if not _resettable(plan)]
    ready = [plan for plan in plans if _resettable(plan) and plan.rows]
    quiet = options.export or options.as_json
    for plan in live:
        error_line(
            f"group {plan.group} is {plan.state}: stop its members first, offsets of live groups cannot be reset"
        )
    if not quiet:
        _show(plans)
    for plan in ready:
        _warn_of_clamps(plan)
    code = EXIT_FAILED if live else 0
    undo: Path | None = None
    if ready and _wanted(ready, options):
        undo = _write_undo(ready, options.undo_file)
        _commit(admin, ready, undo, quiet=quiet)
    if options.export:
        from odradek.lag import reset_csv

        named = len(options.groups) == 1
        exported = {plan.group: {} if plan in live else _after(plan) for plan in plans}
        print_data(reset_csv.export(exported, with_group=not named))
    elif options.as_json:
        print_json([_as_json(plan, plan in ready and undo is not None, undo) for plan in plans], indent=2)
    return code


def _plans(admin: Admin, scenario: Scenario, options: ResetOptions) -> list[GroupReset]:
    from odradek.core.ids import TopicPartition
    from odradek.lag import reset

    topics, single = parse_partitions(options.topics)
    groups = [row.group_id for row in admin.list_groups()] if options.all_groups else options.groups
    if not groups:
        groups = sorted(scenario.offsets)
    for group in groups:
        if scenario.kind == "from-file" and group not in scenario.offsets and not options.all_groups:
            raise CommandError(f"--from-file: it has no row of group {group}")
    made = []
    with progress("Looking up offsets", len(groups), "groups") as advance:
        for group in groups:
            made.append(
                reset.plan(
                    admin, group, scenario, topics=topics, partitions=[TopicPartition(*tp) for tp in single],
                    all_topics=options.all_topics,
                )
            )  # fmt: skip
            advance(1)
    return made


def _resettable(plan: GroupReset) -> bool:
    from odradek.lag.reset import RESETTABLE

    return plan.state in RESETTABLE


def _after(plan: GroupReset) -> dict[TopicPartition, int]:
    from odradek.core.ids import TopicPartition as Tp

    return {Tp(row.topic, row.partition): row.after for row in plan.rows}


def _show(plans: list[GroupReset]) -> None:
    for plan in plans:
        if not plan.rows:
            note(f"Group {plan.group}: nothing to reset.")
            continue
        lines = [
            (
                row.topic,
                str(row.partition),
                "-" if row.before is None else str(row.before),
                str(row.after),
                _effect(row),
            )
            for row in sorted(plan.rows)
        ]
        head = ("TOPIC", "PARTITION", "BEFORE", "AFTER", "RECORDS")
        again = -sum(row.distance for row in plan.rows if row.distance < 0)
        skipped = sum(row.distance for row in plan.rows if row.distance > 0)
        note_table(fitting(head, lines, right=frozenset({1, 2, 3})), "", f"Group {plan.group}")
        note(f"In all: {counted(again, 'record')} read again, {skipped:,} skipped.")


def _effect(row: ResetRow) -> str:
    if row.before is None:
        return f"first, skips {row.distance:,}" if row.distance else "first offset"
    if row.distance < 0:
        return f"reads {-row.distance:,} again"
    return f"skips {row.distance:,}" if row.distance else "unchanged" if row.before == row.after else "none"


def _warn_of_clamps(plan: GroupReset) -> None:
    for row in plan.rows:
        if row.clamped_from is not None:
            edge = "starts" if row.clamped_from < row.after else "ends"
            said = f"offset {row.clamped_from} of {row.topic}-{row.partition} is outside of the log, which {edge} at"
            warning_lines(f"Warning: {said} {row.after}: {row.after} is taken.")


def _wanted(ready: list[GroupReset], options: ResetOptions) -> bool:
    """Whether to go on: told so by an option, or by whoever sits at the terminal."""
    if options.execute:
        return True
    if options.dry_run or options.export:
        return False
    if options.as_json or not sys.stdin.isatty():
        raise CommandError("groups reset: nobody to ask: add --execute to do it, --dry-run to only show it")
    return ask(f"Reset {_named([plan.group for plan in ready])}?")


def _named(groups: list[str]) -> str:
    """Their names, or how many they are where the names would not fit into a line of a terminal."""
    names = ", ".join(groups)
    return names if len(groups) == 1 or len(names) <= NAMES_WIDTH else counted(len(groups), "group")


def _write_undo(ready: list[GroupReset], wished: Path | None) -> Path:
    """Keeps the offsets as they were, as input of --from-file, on disk before anything changes."""
    from odradek.core.ids import TopicPartition
    from odradek.lag import reset_csv

    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%f")[:-3]
    path = wished or Path(f"odradek-undo-{stamp}Z.csv")
    before = {
        plan.group: {
            TopicPartition(row.topic, row.partition): row.before for row in plan.rows if row.before is not None
        }
        for plan in ready
    }
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(reset_csv.export(before, with_group=len(ready) > 1))
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        raise CommandError(f"--undo-file {path} exists: name another one, it is never overwritten") from None
    except OSError as error:
        raise CommandError(f"undo file {path}: {error.strerror}: name another one by --undo-file") from error
    return path


def _commit(admin: Admin, ready: list[GroupReset], undo: Path, *, quiet: bool) -> None:
    done: list[str] = []
    with progress("Resetting", len(ready), "groups") as advance:
        for plan in ready:
            try:
                admin.alter_group_offsets(plan.group, plan.commits())
            except Exception:
                if done:
                    error_line(f"already reset: {', '.join(done)} (undo file {undo})")
                raise
            done.append(plan.group)
            advance(1)
    if quiet:
        return
    note(f"Reset {_named(done)}.")
    single = f" --group {ready[0].group}" if len(ready) == 1 else ""
    if any(row.before is not None for plan in ready for row in plan.rows):
        note(f"Undo: odradek groups reset{single} --from-file {undo} --execute -b …")
    for plan in ready:
        new = [f"{row.topic}:{row.partition}" for row in plan.rows if row.before is None]
        if new:
            given = " ".join(f"--topic {one}" for one in new[:4]) + (" …" if len(new) > 4 else "")
            note(f"These had no offset before; to undo: odradek groups delete-offsets --group {plan.group} {given}")


def _as_json(plan: GroupReset, done: bool, undo: Path | None) -> dict[str, object]:
    rows = [{name: value for name, value in row._asdict().items() if name != "log_start"} for row in plan.rows]
    file = str(undo) if done and undo is not None else None
    return {"group": plan.group, "state": plan.state, "reset": done, "undo_file": file, "partitions": rows}
