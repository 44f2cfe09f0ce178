"""What a person asks for with a reset: the target and the partitions, as texts of a form or of a JSON body. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from odradek.core.counts import counted
from odradek.core.errors import ConfigError
from odradek.core.ids import LAST_MS, TopicPartition, read_partitions
from odradek.lag import reset_csv
from odradek.lag.reset import Scenario, scenario_for
from odradek.monitor.choices import MOST_BULK_GROUPS, TARGETS, RequestRefused

CSV_NAME = "CSV"
_NUMBERS = ("to-offset", "shift-by")
_TIMES = ("to-datetime", "by-duration")
_OPTION = re.compile(r"^--[a-z-]+:? ?")
_EXAMPLES = {"to-offset": "1000", "shift-by": "-100", "to-datetime": "2026-01-31T12:00:00", "by-duration": "2h"}


class ResetRequest(NamedTuple):
    """``target``: a key of ``TARGETS``. ``value``: its value, for those that have one. ``topics``: whole ones, or
    partitions as ``TOPIC:0,1``; none: all partitions with a committed offset. ``csv``: the rows of ``from-file``,
    which have the partitions. ``mark``: a Spark query of the group follows the reset."""

    target: str
    value: str = ""
    topics: tuple[str, ...] = ()
    csv: str = ""
    mark: bool = False

    @property
    def text(self) -> str:
        """Returns the target for people, such as ``shift-by -100``."""
        return f"{self.target} {self.value}".strip()


def request_of(values: Mapping[str, Any]) -> ResetRequest:
    """Returns a request with values of the right types. Raises RequestRefused, which names the field."""
    for field, kind in (("target", str), ("value", str), ("csv", str), ("mark", bool)):
        if not isinstance(values.get(field, kind()), kind):
            raise RequestRefused(field, f"{field}: expected {'true or false' if kind is bool else 'a text'}")
    target = values.get("target", "")
    if target not in TARGETS:
        raise RequestRefused("target", f"target: expected {', '.join(TARGETS)}, not {target!r}")
    value, topics = str(values.get("value", "")).strip(), topics_of(values.get("topics", []))
    if target in _EXAMPLES and not value:
        raise RequestRefused("value", f"value: {target} needs one, for example {_EXAMPLES[target]}")
    if target not in _EXAMPLES and value:
        raise RequestRefused("value", f"value: {target} takes none, not {value!r}")
    csv = values.get("csv", "")
    if target == "from-file" and topics:
        raise RequestRefused("topics", "topics: the CSV has the partitions: leave topics out")
    if target != "from-file" and csv.strip():
        raise RequestRefused("csv", f"csv: {target} takes none: choose from-file")
    return ResetRequest(target, value, topics, csv if target == "from-file" else "", values.get("mark", False))


def topics_of(value: object) -> tuple[str, ...]:
    """Returns the topics of a JSON body or of a form. Raises RequestRefused."""
    if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
        raise RequestRefused("topics", "topics: expected a list of texts such as orders or orders:0,1")
    return tuple(word for one in value for word in one.split())


def partitions_of(topics: tuple[str, ...]) -> tuple[list[str], list[TopicPartition]]:
    """Returns whole topics, and partitions. Raises RequestRefused."""
    try:
        names, single = read_partitions(topics)
    except ValueError as error:
        raise RequestRefused("topics", f"topics: {error}") from None
    return names, [TopicPartition(*one) for one in single]


def scenario_of(request: ResetRequest, group: str, now_ms: int) -> tuple[Scenario, tuple[str, ...]]:
    """Returns the scenario of a request, and notes about it. Raises RequestRefused."""
    try:
        if request.target == "from-file":
            return _from_csv(request.csv, group)
        if request.target in _NUMBERS:
            digits = request.value.removeprefix("-")
            if not (digits.isascii() and digits.isdigit() and int(digits) <= LAST_MS):
                raise RequestRefused("value", f"value: {request.target} needs a whole number, not {request.value!r}")
            return scenario_for(request.target, int(request.value), now_ms), ()
        scenario = scenario_for(request.target, request.value, now_ms)
    except ConfigError as error:
        raise _refusal("value", error) from None
    if request.target in _TIMES and scenario.value > now_ms:
        return scenario, ("The time is in the future: no record is at or after it.",)
    return scenario, ()


def groups_of(value: object) -> tuple[str, ...]:
    """Returns the names of groups in a JSON body or in a form, each once. Raises RequestRefused."""
    if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
        raise RequestRefused("groups", "groups: expected a list of names")
    names = tuple(dict.fromkeys(value))
    _check_count(len(names))
    return names


def _check_count(count: int) -> None:
    if count > MOST_BULK_GROUPS:
        raise RequestRefused("groups", f"groups: {count:,} are too many: at most {MOST_BULK_GROUPS} at a time")


def divided(request: ResetRequest, groups: Sequence[str]) -> tuple[dict[str, ResetRequest], tuple[str, ...]]:
    """Returns the request of each group, and notes. Each gets its rows of a CSV; without groups, those of the CSV are
    meant. Raises RequestRefused."""
    if request.target != "from-file":
        if not groups:
            raise RequestRefused("groups", "groups: name at least one")
        return dict.fromkeys(groups, request), ()
    offsets = _rows_of(request.csv, groups)
    chosen = list(groups or offsets)
    _check_count(len(chosen))
    if missing := [name for name in chosen if name not in offsets]:
        raise RequestRefused("csv", f"csv: it has no row for {_few(missing)}")
    others = sorted(offsets.keys() - set(chosen))
    notes = (f"The rows of {counted(len(others), 'other group')} are left out: {_few(others)}.",) if others else ()
    of_each = {name: reset_csv.export({name: offsets[name]}, with_group=False) for name in chosen}
    return {name: request._replace(csv=rows) for name, rows in of_each.items()}, notes


def _rows_of(csv: str, groups: Sequence[str]) -> dict[str, dict[TopicPartition, int]]:
    try:
        return reset_csv.parse(csv.removeprefix("\ufeff"), groups, CSV_NAME)
    except ConfigError as error:
        raise _refusal("csv", error) from None


def _refusal(field: str, error: ConfigError) -> RequestRefused:
    """Returns an error of the planner without the names of options of the command line."""
    return RequestRefused(field, f"{field}: {_OPTION.sub('', str(error)).replace(' --', ' ')}")


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5:,} more" if len(names) > 5 else "")


def _from_csv(text: str, group: str) -> tuple[Scenario, tuple[str, ...]]:
    offsets = _rows_of(text, [group])
    others = sorted(offsets.keys() - {group})
    if group not in offsets:
        raise RequestRefused("csv", f"csv: it has no row for this group; its groups: {', '.join(others[:5])}")
    notes = (f"The rows of {counted(len(others), 'other group')} are left out: {', '.join(others[:5])}.",)
    return Scenario("from-file", offsets={group: offsets[group]}), notes if others else ()
