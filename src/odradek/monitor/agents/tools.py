"""Tools: a name, parameters, and a function that returns a JSON value. The check of their arguments is pure.

A refusal is one line for the agent: it names the argument, what was expected, and for a name the nearest right one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from odradek.core.errors import OdradekError
from odradek.text.similar_names import nearest

Json = dict[str, Any]
_LONGEST_TEXT = 1_000
_MOST_ITEMS = 1_000


class ToolRefused(OdradekError):
    """A call that is not answered. The message is one line with the remedy."""


@dataclass(frozen=True)
class Parameter:
    """A parameter of a tool.

    ``kind``: ``string``, ``integer`` or ``array`` (of strings). ``choices``: the only values of a string. ``least`` and
    ``most`` bound an integer. ``default`` is used where an agent gives none; None means that it must give one.
    """

    name: str
    kind: str
    description: str
    default: str | int | tuple[str, ...] | None = None
    choices: tuple[str, ...] = ()
    least: int = 0
    most: int = 1_000

    def schema(self) -> Json:
        """Returns the JSON schema of its values."""
        schema: Json = {"type": self.kind, "description": self.description}
        if self.kind == "array":
            schema |= {"items": {"type": "string"}, "maxItems": _MOST_ITEMS}
        if self.kind == "integer":
            schema |= {"minimum": self.least, "maximum": self.most}
        if self.choices:
            schema["enum"] = list(self.choices)
        if self.default is not None:
            schema["default"] = list(self.default) if isinstance(self.default, tuple) else self.default
        return schema

    def checked(self, value: object) -> object:
        """Returns the value, an array as a tuple. Raises ToolRefused."""
        expected = self._expected()
        match self.kind:
            case "integer":
                is_right = type(value) is int and self.least <= value <= self.most
            case "array":
                is_right = isinstance(value, list) and len(value) <= _MOST_ITEMS and all(map(_is_text, value))
                value = tuple(value) if isinstance(value, list) else value
            case _:
                is_right = _is_text(value) and (not self.choices or value in self.choices)
        if not is_right:
            meant = nearest(value, self.choices) if self.choices and isinstance(value, str) else ""
            raise ToolRefused(f"{self.name}: expected {expected}, not {_shown(value)}{meant}")
        return value

    def _expected(self) -> str:
        if self.choices:
            return ", ".join(self.choices)
        if self.kind == "integer":
            return f"a whole number from {self.least} to {self.most}"
        return (
            f"an array of at most {_MOST_ITEMS:,} texts"
            if self.kind == "array"
            else (f"a text of at most {_LONGEST_TEXT:,} characters")
        )


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= _LONGEST_TEXT


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


@dataclass(frozen=True)
class Tool:
    """A tool. ``call`` gets an argument for each parameter; it blocks, and raises ToolRefused and OdradekError.

    ``changes``: whether it changes something in Kafka. ``writes``: whether it writes a file of this program.
    """

    name: str
    title: str
    description: str
    call: Callable[..., Json]
    parameters: tuple[Parameter, ...] = ()
    changes: bool = False
    writes: bool = False

    def schema(self) -> Json:
        """Returns the JSON schema of its arguments."""
        return {
            "type": "object",
            "properties": {one.name: one.schema() for one in self.parameters},
            "required": [one.name for one in self.parameters if one.default is None],
            "additionalProperties": False,
        }

    def arguments(self, given: Mapping[str, object]) -> dict[str, object]:
        """Returns an argument for each parameter. Raises ToolRefused."""
        names = [one.name for one in self.parameters]
        for name in given:
            if name not in names:
                takes = ", ".join(names) or "nothing"
                raise ToolRefused(f"{self.name} has no argument {_shown(name)}{nearest(name, names)}: it takes {takes}")
        for one in self.parameters:
            if one.default is None and given.get(one.name) is None:
                raise ToolRefused(f"{self.name} needs the argument {one.name}: {one.description}")
        return {
            one.name: one.default if given.get(one.name) is None else one.checked(given[one.name])
            for one in self.parameters
        }


def tool_named(tools: Sequence[Tool], name: str) -> Tool:
    """Returns the tool with a name. Raises ToolRefused."""
    found = next((tool for tool in tools if tool.name == name), None)
    if found is None:
        names = [tool.name for tool in tools]
        raise ToolRefused(f"there is no tool {_shown(name)}{nearest(name, names)}: the tools are {', '.join(names)}")
    return found
