"""The options of a reset that choose partitions and the target, and the scenario of the one target that is given."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from odradek.cli.environment import user_data_folder
from odradek.cli.options import LAST_INT64
from odradek.cli.terminal import CommandError

if TYPE_CHECKING:
    from odradek.lag.reset import Scenario
    from odradek.lag.reset_targets import ResetTarget


ResetTopic = Annotated[
    list[str] | None, typer.Option("--topic", metavar="TOPIC[:0,1]", help="A topic, or some partitions. Repeatable.")
]
AllTopics = Annotated[bool, typer.Option("--all-topics", help="All partitions with an offset of the group.")]
ToEarliest = Annotated[bool, typer.Option("--to-earliest", help="To the log start.")]
ToLatest = Annotated[bool, typer.Option("--to-latest", help="To the log end.")]
ToOffset = Annotated[
    int | None, typer.Option("--to-offset", min=-LAST_INT64, max=LAST_INT64, metavar="N", help="To this offset.")
]
ShiftBy = Annotated[
    int | None,
    typer.Option("--shift-by", min=-LAST_INT64, max=LAST_INT64, metavar="N", help="By N records; N < 0 moves back."),
]
ToDatetime = Annotated[
    str | None,
    typer.Option(
        "--to-datetime",
        metavar="TIME",
        help="To the first record at or after YYYY-MM-DDTHH:mm[:SS.sss], in UTC unless +01:00 or Z follows.",
    ),
]
ByDuration = Annotated[
    str | None,
    typer.Option(
        "--by-duration", metavar="SPAN", help="To the first record from this span before now on: 2h, 7d, PT2H."
    ),
]

PlansFolder = Annotated[
    Path | None,
    typer.Option(
        "--plans", metavar="DIR", help="The folder of the plans. Default: plans in odradek's folder of user data."
    ),
]


def plans_folder(given: Path | None) -> Path:
    """Returns the folder of planned resets. Raises CommandError for a file."""
    if given is not None and given.exists() and not given.is_dir():
        raise CommandError(f"--plans {given} is a file: give a folder")
    return given or user_data_folder() / "plans"


def targets_of(line: object) -> dict[ResetTarget, object]:
    """Returns the targets that a command line has, by name; None for a target that is not given."""
    from odradek.lag.reset_targets import ResetTarget as Target

    fields = {target: target.replace("-", "_") for target in Target}
    values = {target: getattr(line, field) for target, field in fields.items() if hasattr(line, field)}
    return {target: None if value is False else value for target, value in values.items()}


def check_partitions(topics: list[str] | None, all_topics: bool) -> None:
    """Raises CommandError unless either --topic or --all-topics is given."""
    if topics and all_topics:
        raise CommandError("--topic and --all-topics: give one of them")
    if bool(topics) == all_topics:
        raise CommandError("choose the partitions: give --topic TOPIC[:0,1] (repeatable) or --all-topics")


def only_target(given: Mapping[ResetTarget, object], command: str) -> ResetTarget:
    """Returns the name of the only target that is given. Raises CommandError unless exactly one is given."""
    chosen = [name for name, value in given.items() if value is not None]
    if len(chosen) != 1:
        what = (
            " and ".join(f"--{name}" for name in chosen) + " cannot be used together"
            if chosen
            else "the target is missing"
        )
        raise CommandError(f"{command}: {what}: give one of {', '.join('--' + name for name in given)}")
    return chosen[0]


def time_of(scenario: Scenario) -> tuple[str, ...]:
    """Returns the line with the time of a target, in UTC: a person may mean the time of another zone. Nothing for other
    targets."""
    if not scenario.kind.is_time:
        return ()
    from odradek.lag.reset import datetime_text

    return ("", f"Time: {datetime_text(scenario.value)} (UTC)")


def scenario_for(target: ResetTarget, value: object) -> Scenario:
    """Returns the scenario of a target and its value. Raises CommandError."""
    from odradek.core.errors import ConfigError
    from odradek.lag import reset as resets

    try:
        return resets.scenario_for(target, "" if value is True else str(value), time.time_ns() // 1_000_000)
    except ConfigError as error:
        fault = str(error).removeprefix(f"{target} ").replace(" by-duration", " --by-duration")
        raise CommandError(f"--{target} {fault}") from None
