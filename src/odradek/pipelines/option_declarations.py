"""Options that are declared as fields of dataclasses. Commands without pipelines have such options, too."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, NamedTuple, get_args, get_origin, get_type_hints


@dataclass(frozen=True)
class Option:
    """The help text and the permitted values of an option of the command line. A field without an ``Option`` exists
    only in Python.

    ``name`` is the option's name on the command line. Without it, the name is derived from the field. ``prefix``: a
    value that begins with it is permitted beside the ``choices``; a name follows.
    """

    help: str
    metavar: str | None = None
    name: str | None = None
    choices: tuple[str, ...] = ()
    prefix: str = ""
    minimum: int | None = None


_UNLOADED = ("SparkSession", "Added", "FindingRules", "VerdictRules", "DataFrame")
"""Classes in annotations that are imported only for type checkers."""


class DeclaredOption(NamedTuple):
    """The type of a field with an ``Option``, and the option."""

    type: object  # a type or a union of types: these have no common class
    option: Option


# Each annotation is compiled and evaluated: a fifth of the time of a command without new records, if this is done for
# each option.
@functools.cache
def hints_of(kind: type) -> Mapping[str, object]:
    """Returns the types of a dataclass's fields, with ``Annotated``. Loads no Spark."""
    return MappingProxyType(get_type_hints(kind, localns=dict.fromkeys(_UNLOADED, object), include_extras=True))


@functools.cache
def declared_options(kind: type) -> Mapping[str, DeclaredOption]:
    """Returns the fields of a dataclass that have an ``Option``, by name."""
    found: dict[str, DeclaredOption] = {}
    for name, hint in hints_of(kind).items():
        if get_origin(hint) is Annotated:
            of_type, *more = get_args(hint)
            options = [one for one in more if isinstance(one, Option)]
            if options:
                found[name] = DeclaredOption(of_type, options[0])
    return MappingProxyType(found)
