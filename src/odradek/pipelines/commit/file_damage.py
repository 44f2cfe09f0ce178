"""Damaged files of notes and checkpoints: what is wrong with one, and what the user can do."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

from odradek.core.errors import StorageError
from odradek.text.printable import one_line

NO_TEXT = "it is no text in UTF-8"
FOLDER = "it is a folder, and not a file"


class DamagedFile(StorageError):
    """A file whose content nothing of odradek has written. ``fault``: what is wrong. ``remedy``: what the user can do;
    empty if only the caller knows it."""

    def __init__(self, name: str, fault: str, remedy: str = "") -> None:
        super().__init__(f"{name} is damaged: {fault}" + (f". {remedy}" if remedy else ""))
        self.name, self.fault, self.remedy = name, fault, remedy


@contextlib.contextmanager
def remedied_by(remedy: str) -> Iterator[None]:
    """Adds a remedy to the error about a damaged file, if it has none. Raises DamagedFile."""
    try:
        yield
    except DamagedFile as error:
        if error.remedy:
            raise
        raise DamagedFile(error.name, error.fault, remedy) from error


def fault_of(text: str, error: Exception) -> str:
    """Returns what is wrong with a text of JSON. ``error``: the one of the code that has read it."""
    if not text.strip():
        return "it is empty"
    match error:
        case json.JSONDecodeError():
            return f"it is no JSON, or only a part of it (line {error.lineno}, column {error.colno})"
        case KeyError():
            return f"it has no {error.args[0]}"
        case TypeError() | AttributeError() | AssertionError() | IndexError():
            return "its JSON has another form"
        case _:
            return one_line(error)
