"""The undo file: the values that a command replaces, written to the disk before anything changes."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from odradek.cli.terminal import CommandError


def write_undo(text: str, given: Path | None, suffix: str) -> Path:
    """Writes the previous offsets to the disk and returns the file. Without ``given`` its name has the present time.

    Raises CommandError for a file that exists or cannot be written."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%f")[:-3]
    path = given or Path(f"odradek-undo-{stamp}Z.{suffix}")
    write_new(path, text, "--undo-file", lambda why: f"undo file {path}: {why}: give another file with --undo-file")
    return path


def write_new(path: Path, text: str, option: str, failure: Callable[[str | None], str]) -> None:
    """Creates a file and syncs it. ``failure`` makes the message from the system's reason.

    Raises CommandError, also if the file exists."""
    try:
        with path.open("x", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        raise CommandError(f"{option} {path} exists and is not overwritten: give another file") from None
    except OSError as error:
        raise CommandError(failure(error.strerror)) from error
