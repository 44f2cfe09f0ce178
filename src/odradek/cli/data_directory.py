"""The data directory of a stopped broker, as an option of commands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from odradek.cli.terminal import CommandError

DataDir = Annotated[
    Path, typer.Option("--data-dir", "--data", metavar="DIR", help="Folder of a broker's logs. The broker is stopped.")
]
_PARTITION = re.compile(r".+-\d+")
_META = "meta.properties"


def check_data_dir(path: Path) -> None:
    """Raises CommandError if a path is not a folder with the logs of a broker. It writes nothing there."""
    from odradek.core.operating_system import require_posix

    require_posix("the data directory of a broker")
    if not path.is_dir():
        raise CommandError(f"{path} is not a folder")
    try:
        names = [entry.name for entry in path.iterdir()]
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror or error}") from error
    if _META not in names and not any(map(_PARTITION.fullmatch, names)):
        raise CommandError(
            f"{path} is not the data directory of a broker: it has no {_META} and no folder of a partition; give the "
            "folder that --data-dir of `odradek serve` names"
        )
