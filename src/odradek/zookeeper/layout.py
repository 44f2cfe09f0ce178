"""Paths and values of offsets in ZooKeeper. Pure: no clock, no socket.

Kafka's layout is ``/consumers/GROUP/offsets/TOPIC/PARTITION`` with the next offset in decimal digits. Other programs
use other paths, put the offset into a field of a JSON object, or store the last offset that they have read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from odradek.core.errors import ConfigError
from odradek.core.ids import TopicPartition
from odradek.text.json_literals import with_member

KAFKA_TEMPLATE = "/consumers/{group}/offsets/{topic}/{partition}"
NAMES = ("group", "topic", "partition")
MAX_OFFSET = (1 << 63) - 1
MAX_PARTITION = (1 << 31) - 1
_PLACEHOLDER = re.compile(r"\{(\w*)\}")
_NUMBER = re.compile("0|[1-9][0-9]{0,9}")
_BYTE_POSITION = re.compile(r"[0-9]+-[0-9]+")
_SHOWN = 40
# The characters that ZooKeeper accepts in no path.
_FORBIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]")


class GroupPartition(NamedTuple):
    """A group, and a partition for which the group has an offset."""

    group: str
    tp: TopicPartition


def name_problem(name: str) -> str | None:
    """Returns why no path of ZooKeeper can hold a name, or None if a path can."""
    if not name:
        return "it is empty"
    if name in (".", ".."):
        return f"{name!r} means another path"
    if "/" in name:
        return "it has a slash"
    forbidden = _FORBIDDEN.search(name)
    return f"it has the character U+{ord(forbidden[0]):04X}" if forbidden else None


def parse_partition(text: str) -> int | str:
    """Returns a partition's number, or why the text is not the number of a partition."""
    if _NUMBER.fullmatch(text) and int(text) <= MAX_PARTITION:
        return int(text)
    if _BYTE_POSITION.fullmatch(text):
        return f"{text} is a broker and a partition of Kafka 0.7, whose values are byte positions, not offsets"
    return f"{_shown(text)} is not the number of a partition"


@dataclass(frozen=True)
class OffsetLayout:
    """The paths and the values of stored offsets. Raises ConfigError if the fields do not fit together.

    ``template`` has the placeholders {group}, {topic} and {partition}. A template without {group} or {topic} is for one
    group or one topic only, which ``group`` or ``topic`` names. ``json_field``: the value is a JSON object with the
    offset in this field; ``a.b`` is field ``b`` of the object in field ``a``. ``last_read``: the value is the last
    offset that was read, so the next offset is one more.
    """

    template: str = KAFKA_TEMPLATE
    json_field: str | None = None
    last_read: bool = False
    group: str | None = None
    topic: str | None = None

    def __post_init__(self) -> None:
        names = _PLACEHOLDER.findall(self.template)
        if not self.template.startswith("/") or "//" in self.template or self.template.endswith("/"):
            raise ConfigError(f"path template {self.template!r}: expected an absolute path such as {KAFKA_TEMPLATE}")
        for problem in filter(None, map(name_problem, self.template.split("/")[1:])):
            raise ConfigError(f"path template {self.template!r}: no path of ZooKeeper can be like this: {problem}")
        if len(set(names)) != len(names) or set(names) - set(NAMES) or "{partition}" not in self.template:
            raise ConfigError(
                f"path template {self.template!r}: expected {{partition}}, {{group}} and {{topic}}, each once"
            )
        for name, given in (("group", self.group), ("topic", self.topic)):
            if (name in names) == (given is not None):
                what = (
                    f"has {{{name}}}: omit the fixed {name}"
                    if given is not None
                    else f"has no {{{name}}}: name the {name}"
                )
                raise ConfigError(f"path template {self.template!r} {what}")
        if self.json_field is not None and not all(self.json_field.split(".")):
            raise ConfigError(f"JSON field {self.json_field!r}: expected a name, or names with dots between them")

    @property
    def is_kafkas(self) -> bool:
        """Whether this is the layout of Kafka's consumers, which also register members and owners."""
        return self.template == KAFKA_TEMPLATE and self.json_field is None and not self.last_read

    @cached_property
    def segments(self) -> tuple[str, ...]:
        """The parts of the template between slashes."""
        return tuple(self.template.split("/")[1:])

    def path(self, group: str, tp: TopicPartition) -> str:
        """Returns the path of a partition's offset.

        Raises ConfigError for a name that no path can hold, and for a group or topic that the template is not for."""
        for what, name in (("group", group), ("topic", tp.topic)):
            if f"{{{what}}}" in self.template and (problem := name_problem(name)):
                raise ConfigError(f"{what} {_shown(name)}: no path of ZooKeeper can hold this name: {problem}")
        if self.group not in (None, group) or self.topic not in (None, tp.topic):
            raise ConfigError(
                f"the path template is for group {self.group or group} and topic {self.topic or tp.topic} only"
            )
        return _fill(self.template, {"group": group, "topic": tp.topic, "partition": str(tp.partition)})

    def matcher(self, segment: str) -> re.Pattern[str]:
        """Returns the pattern of one part of the template; its named groups of ``re`` are the placeholders."""
        pieces = re.split(r"(\{\w+\})", segment)
        return re.compile("".join(
            f"(?P<{piece[1:-1]}>.+)" if _PLACEHOLDER.fullmatch(piece) else re.escape(piece) for piece in pieces
        ), re.DOTALL)  # fmt: skip

    def group_partition(self, path: str) -> GroupPartition | str:
        """Returns the group and partition of a path, or why it is no path of this layout."""
        parts = path.split("/")[1:] if path.startswith("/") else []
        if len(parts) != len(self.segments):
            return f"it does not match {self.template}"
        names: dict[str, str] = {}
        for segment, part in zip(self.segments, parts, strict=True):
            match = self.matcher(segment).fullmatch(part)
            if match is None:
                return f"it does not match {self.template}"
            names |= match.groupdict()
        partition = parse_partition(names["partition"])
        if isinstance(partition, str):
            return partition
        group, topic = names.get("group", self.group), names.get("topic", self.topic)
        assert group is not None
        assert topic is not None
        return GroupPartition(group, TopicPartition(topic, partition))

    def offset(self, data: bytes | None) -> int | str:
        """Returns the next offset to read that a value means, or the reason why the value has none."""
        if not data:
            return "it has no data"
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return "its data is not UTF-8"
        stored = _whole_number(text) if self.json_field is None else _field_of(text, self.json_field)
        if isinstance(stored, str):
            return stored
        if stored < 0:
            return f"{stored} is below 0"
        following = stored + self.last_read
        return following if following <= MAX_OFFSET else f"{stored} is larger than any offset"

    def data(self, offset: int, before: bytes | None) -> bytes:
        """Returns the value that stores an offset. ``before``: the present value, whose other JSON fields are kept.

        Raises ConfigError if this layout cannot store the offset."""
        stored = offset - self.last_read
        if stored < 0:
            raise ConfigError("offset 0 has no value where the last offset that was read is stored (--last-read)")
        if self.json_field is None:
            return b"%d" % stored
        if before is None:
            raise ConfigError(
                f"a new value needs the other fields of the JSON object beside {self.json_field}, which are unknown: "
                "let the program that reads it store its first offset"
            )
        names = self.json_field.split(".")
        fields = json.loads(before)
        inner = fields
        for name in names[:-1]:
            inner = inner[name]
        literal = f'"{stored}"' if isinstance(inner[names[-1]], str) else str(stored)
        return with_member(before.decode(), names, literal).encode()


def _field_of(text: str, name: str) -> int | str:
    """Returns the whole number in a field of a JSON object, or why the field has none."""
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return "its data is not JSON"
    for part in name.split("."):
        if not isinstance(value, dict) or part not in value:
            return f"its JSON has no field {name}"
        value = value[part]
    if isinstance(value, str):
        return _whole_number(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return f"the field {name} of its JSON is no whole number"


def _whole_number(text: str) -> int | str:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        return f"{_shown(text)} is not a whole number"
    kept = digits.lstrip("0") or "0"
    if len(kept) > len(str(MAX_OFFSET)) or int(kept) > MAX_OFFSET:
        return f"{_shown(text)} is larger than any offset"
    return -int(kept) if text.startswith("-") else int(kept)


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…")


def _fill(template: str, values: Mapping[str, str]) -> str:
    return _PLACEHOLDER.sub(lambda match: values[match[1]], template)


KAFKA_LAYOUT = OffsetLayout()
