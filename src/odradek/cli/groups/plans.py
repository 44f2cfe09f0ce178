"""``odradek groups plans`` and ``odradek groups apply``: resets that were planned before, for example by an agent."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated

import typer

from odradek.cli.groups.reset import ResetLine, show_plan, undo_lines
from odradek.cli.option_fields import of_fields
from odradek.cli.options import TIMEOUT_MS, AsJson, Bootstrap, CommandConfig, Timeout, connect, table_or_blocks
from odradek.cli.reset_targets import PlansFolder, plans_folder
from odradek.cli.terminal import EXIT_FAILED, CommandError, ask, note, note_table, print_json

PLANS_EPILOG = "Example:\n\n\b\n  odradek groups plans"
APPLY_EPILOG = (
    "Examples:\n\n\b\n"
    "  odradek groups apply 5a3f09c1 -b 127.0.0.1:9092\n"
    "  odradek groups apply 5a3f09c1 --execute -b 127.0.0.1:9092"
)


@dataclass(frozen=True, kw_only=True)
class PlansLine:
    """The options of ``groups plans``."""

    plans: PlansFolder = None
    as_json: AsJson = False


@dataclass(frozen=True, kw_only=True)
class ApplyLine:
    """The options of ``groups apply``."""

    plan: Annotated[str, typer.Argument(metavar="PLAN", help="The id of the plan.")]
    bootstrap: Bootstrap
    execute: Annotated[bool, typer.Option("--execute", help="Apply it without asking.")] = False
    plans: PlansFolder = None
    command_config: CommandConfig = None
    timeout_ms: Timeout = TIMEOUT_MS


@of_fields()
def plans(line: PlansLine) -> None:
    """List the resets that were planned, the newest first."""
    from odradek.lag.reset import datetime_text
    from odradek.lag.reset_plans import PlanFolder

    saved = list(PlanFolder(plans_folder(line.plans)).saved())
    if line.as_json:
        print_json(
            [
                {
                    "plan": one.plan_id, "made_ms": one.made_ms, "group": one.plan.group, "target": one.target,
                    "partitions": [row._asdict() for row in one.plan.rows], "is_applied": one.is_applied,
                }
                for one in saved
            ],
            indent=2,
        )  # fmt: skip
        return
    if not saved:
        note(f"There are no plans in {plans_folder(line.plans)}.")
        return
    rows = [
        (
            one.plan_id, datetime_text(one.made_ms), one.plan.group, one.target, str(len(one.plan.rows)),
            "yes" if one.is_applied else "no",
        )
        for one in saved
    ]  # fmt: skip
    head = ("PLAN", "MADE", "GROUP", "TARGET", "PARTITIONS", "APPLIED")
    note_table(table_or_blocks(head, rows, right=frozenset({4})))


@of_fields()
def apply(line: ApplyLine) -> None:
    """Apply a reset that was planned before, if nothing has changed since then.

    Shows the offsets before and after, and asks. It is refused if the group has members, or if a committed offset or a
    topic is not as the plan has seen it. The previous offsets are written to an undo file first.
    """
    from odradek.lag import reset_plans

    folder = reset_plans.PlanFolder(plans_folder(line.plans))
    saved = folder.load(line.plan)
    with connect(line.bootstrap, line.timeout_ms, line.command_config) as admin:
        try:
            reset_plans.check(admin, saved)
            show_plan(saved.plan)
            # ``apply`` checks again: the answer may take its time
            if not line.execute:
                if not sys.stdin.isatty():
                    raise CommandError("groups apply: no terminal to ask at: add --execute to apply the plan")
                if not ask(f"Reset {saved.plan.group}?"):
                    return
            undo = folder.apply(admin, saved)
        except reset_plans.PlanRefused as error:
            raise CommandError(str(error), EXIT_FAILED) from None
        except OSError as error:
            raise CommandError(f"plan {line.plan}: {error}", EXIT_FAILED) from None
    reset_line = ResetLine(bootstrap=line.bootstrap, command_config=line.command_config)
    note(f"Reset {saved.plan.group}.", *undo_lines([saved.plan], [saved.plan], undo, reset_line))
