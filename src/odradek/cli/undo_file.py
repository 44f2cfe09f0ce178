"""The undo file: the values that a command replaces, written to the disk before anything changes.

Without ``--undo-file``, all undo files are in one folder, ``undo`` in the user's data folder. The command prints the
whole path, so that a person who has to undo a reset need not remember the directory in which it was made.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from odradek.cli.environment import user_data_folder
from odradek.cli.terminal import CommandError
from odradek.text.output_file import new_file, problem_of


def write_undo(text: str, given: Path | None, suffix: str) -> Path:
    """Writes the previous offsets to the disk and returns the file. Without ``given`` its name has the present time.

    Raises CommandError for a file that exists or cannot be written."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%f")[:-3]
    path = given or user_data_folder() / "undo" / f"odradek-undo-{stamp}Z.{suffix}"

    def failure(why: str | None) -> str:
        return f"undo file {path}: {why}: give another file with --undo-file"

    if given is None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CommandError(failure(error.strerror)) from error
    write_new(path, text, "--undo-file", failure)
    return path


def check_undo_file(given: Path | None) -> None:
    """Checks the value of --undo-file before the work. Raises CommandError."""
    if given is not None and (problem := problem_of(given)):
        raise CommandError(f"--undo-file {given}: {problem}")


def write_new(path: Path, text: str, option: str, failure: Callable[[str | None], str]) -> None:
    """Creates a file and syncs it. ``failure`` makes the message from the system's reason.

    Raises CommandError, also if the file exists."""
    try:
        with new_file(path) as file:
            file.write(text.encode())
    except FileExistsError:
        raise CommandError(f"{option} {path} exists and is not overwritten: give another file") from None
    except OSError as error:
        raise CommandError(failure(error.strerror)) from error


def pasted(*words: str | Path | None, **options: str | Path | None) -> str:
    """Returns a command line for a shell. ``options`` by name (``command_config``) are left out if they are None.

    A hint that a person can paste has the cluster's address and no ellipsis."""
    line = [str(word) for word in words if word is not None]
    for name, value in options.items():
        if value is not None:
            line += [f"--{name.replace('_', '-')}" if len(name) > 1 else f"-{name}", str(value)]
    return shlex.join(line)
