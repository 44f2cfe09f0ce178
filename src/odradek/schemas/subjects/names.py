"""The names of subjects. A subject ``:.CONTEXT:NAME`` is in a context, which has ids of its own."""

from __future__ import annotations

import re
from typing import NamedTuple

DEFAULT_CONTEXT = "."
GLOBAL_CONTEXT = ".__GLOBAL"
_PREFIX = ":."
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_NO_SUBJECT = ("__GLOBAL", "__EMPTY")
ALL = ":*:"
"""The prefix of all subjects in all contexts."""


class SubjectName(NamedTuple):
    """A subject's context and its name there."""

    context: str
    name: str


def split(subject: str) -> SubjectName:
    """Returns context and name of a subject as a request or a record has it."""
    if not subject.startswith(_PREFIX):
        return SubjectName(DEFAULT_CONTEXT, subject)
    context, colon, name = subject[1:].partition(":")
    return SubjectName(context, name if colon else "")


def joined(context: str, name: str) -> str:
    """Returns the text of a subject: the default context has no prefix."""
    return name if context == DEFAULT_CONTEXT else f":{context}:{name}"


def plain(subject: str) -> str:
    """Returns the one text that a subject has in records: ``:.:NAME`` is ``NAME``."""
    return joined(*split(subject))


def qualified(parent: str, subject: str) -> str:
    """Returns the subject that a reference names: without a context, it is in that of the referring subject."""
    return plain(subject) if subject.startswith(_PREFIX) else joined(split(parent).context, subject)


def is_valid(subject: str, *, is_config: bool = False) -> bool:
    """Returns whether a schema, or with ``is_config`` a config or mode, may have this subject."""
    context, name = split(subject)
    if _CONTROL.search(subject) or name in _NO_SUBJECT:
        return False
    return is_config or context != GLOBAL_CONTEXT


def has_prefix(subject: str, prefix: str) -> bool:
    """Returns whether a list with this prefix has the subject."""
    if prefix.startswith(ALL):
        return split(subject).name.startswith(prefix.removeprefix(ALL))
    wanted, own = split(prefix), split(subject)
    return own.context == wanted.context and own.name.startswith(wanted.name)
