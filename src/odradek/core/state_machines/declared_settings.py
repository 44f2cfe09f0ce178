"""Settings of a state machine, declared once as fields of a dataclass.

The broker's table of settings takes its rows from these declarations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import Field, field, fields
from typing import Any, Self

_READ: dict[str, Callable[[str], object]] = {
    "int": int,
    "long": int,
    "string": str,
    "list": lambda text: tuple(text.split(",")),
}


def _unchanged(value: object) -> object:
    return value


def setting(row: str, convert: Callable[[Any], Any] = _unchanged) -> Any:  # Any: the field can have any type
    """Returns a field with its broker setting.

    ``row`` is a row of ``broker/settings/table``: name, type, default, limits, description. ``convert`` turns the
    setting's value into the field's value.
    """
    name, kind, default, _, _ = (cell.strip() for cell in row.split("|", 4))
    return field(default=convert(_READ[kind](default)), metadata={"name": name, "row": row, "convert": convert})


class DeclaredSettings:
    """The base of a frozen dataclass whose fields are made by ``setting``."""

    __slots__ = ()

    @classmethod
    def of(cls, value_of: Callable[[str], Any]) -> Self:
        """Returns the config from a function that maps a broker setting's name to its value."""
        return cls(**{one.name: one.metadata["convert"](value_of(one.metadata["name"])) for one in cls._declared()})

    @classmethod
    def rows(cls) -> list[str]:
        """Returns the rows of the broker's table."""
        return [one.metadata["row"] for one in cls._declared()]

    @classmethod
    def _declared(cls) -> Iterator[Field[object]]:
        return (one for one in fields(cls) if one.metadata)  # type: ignore[arg-type]  # a subclass is a dataclass
