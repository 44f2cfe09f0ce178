"""The question before a deletion, and the option that answers it."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from odradek.cli.terminal import CommandError, ask

Yes = Annotated[bool, typer.Option("--yes", help="Delete without asking.")]


def confirm(question: str, yes: bool) -> bool:
    """Returns whether ``yes`` is set or the user agrees at the terminal. Raises CommandError without a terminal."""
    if yes:
        return True
    if not sys.stdin.isatty():
        raise CommandError(f"{question} No terminal to ask at: add --yes")
    return ask(question)
