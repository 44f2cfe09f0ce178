"""What a person asks for with a reset: the target and the partitions, as texts of a form or of a JSON body. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from odradek.core.counts import counted
from odradek.core.errors import ConfigError
from odradek.core.ids import TopicPartition, read_partitions
from odradek.lag import reset_csv
from odradek.lag.reset import Scenario, scenario_for
from odradek.lag.reset_targets import ResetTarget
from odradek.monitor.choices import MOST_BULK_GROUPS, RequestRefused

CSV_NAME = "CSV"


class ResetRequest(NamedTuple):
    """``value``: that of the target, if it takes one. ``topics``: whole ones, or partitions as ``TOPIC:0,1``; none: all
    partitions with a committed offset. ``csv``: the rows of ``from-file``, which have the partitions. ``mark``: a Spark
    query of the group follows the reset."""

    target: ResetTarget
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
    try:
        target = ResetTarget(given := values.get("target", ""))
    except ValueError:
        raise RequestRefused("target", f"target: expected {', '.join(ResetTarget)}, not {given!r}") from None
    value, topics = str(values.get("value", "")).strip(), topics_of(values.get("topics", []))
    csv, is_file = values.get("csv", ""), target is ResetTarget.FROM_FILE
    if is_file and topics:
        raise RequestRefused("topics", "topics: the CSV has the partitions: leave topics out")
    if not is_file and csv.strip():
        raise RequestRefused("csv", f"csv: {target} takes none: choose from-file")
    return ResetRequest(target, value, topics, csv if is_file else "", values.get("mark", False))


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
        scenario = scenario_for(request.target, request.value, now_ms)
    except ConfigError as error:
        raise RequestRefused("value", f"value: {error}") from None
    if request.target is ResetTarget.FROM_FILE:
        return _from_csv(request.csv, group)
    if scenario.kind.is_time and scenario.value > now_ms:
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
    if request.target is not ResetTarget.FROM_FILE:
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
        raise RequestRefused("csv", f"csv: {error}") from None


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5:,} more" if len(names) > 5 else "")


def _from_csv(text: str, group: str) -> tuple[Scenario, tuple[str, ...]]:
    offsets = _rows_of(text, [group])
    others = sorted(offsets.keys() - {group})
    if group not in offsets:
        raise RequestRefused("csv", f"csv: it has no row for this group; its groups: {', '.join(others[:5])}")
    notes = (f"The rows of {counted(len(others), 'other group')} are left out: {', '.join(others[:5])}.",)
    return Scenario(ResetTarget.FROM_FILE, offsets={group: offsets[group]}), notes if others else ()
