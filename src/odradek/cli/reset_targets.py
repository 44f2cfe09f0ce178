"""The target of a reset: the one option of several, and its scenario."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from odradek.cli.terminal import CommandError

if TYPE_CHECKING:
    from odradek.lag.reset import Scenario


def only_target(given: Mapping[str, object], command: str) -> str:
    """Returns the name of the only target that is given. Raises CommandError."""
    chosen = [name for name, value in given.items() if value is not None]
    if len(chosen) != 1:
        what = (
            " and ".join(f"--{name}" for name in chosen) + " cannot be used together"
            if chosen
            else "the target is missing"
        )
        raise CommandError(f"{command}: {what}: give one of {', '.join('--' + name for name in given)}")
    return chosen[0]


def scenario_for(kind: str, value: object) -> Scenario:
    """Returns the scenario of a target and its value. Raises ConfigError."""
    from odradek.lag import reset as resets

    if kind == "to-datetime":
        return resets.Scenario(kind, resets.datetime_ms(str(value)))
    if kind == "by-duration":
        return resets.Scenario(kind, time.time_ns() // 1_000_000 - resets.duration_ms(str(value)))
    return resets.Scenario(kind, value if isinstance(value, int) and not isinstance(value, bool) else 0)
