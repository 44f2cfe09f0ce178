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
_PARTITION_META = "partition.metadata"


def check_data_dir(path: Path) -> None:
    """Raises CommandError if a path is not a folder with the logs of a broker. It writes nothing there."""
    from odradek.core.operating_system import require_posix

    require_posix("the data directory of a broker")
    if not path.is_dir():
        what = "is not a folder" if path.exists() else "does not exist"
        raise CommandError(f"--data-dir {path} {what}: give the folder that --data-dir of `odradek serve` names")
    try:
        names = [entry.name for entry in path.iterdir()]
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror or error}") from error
    if _META not in names and not any(_is_partition(path / name) for name in names):
        raise CommandError(
            f"--data-dir {path} is not the data directory of a broker: it has no {_META} and no folder of a partition; "
            "give the folder that --data-dir of `odradek serve` names"
        )


def check_unused_data_dir(path: Path) -> None:
    """Raises CommandError for a folder that no broker has used, and that has the folders of another program.

    Kafka's broker does not start there; this one would write its files among those of, for example, a table."""
    try:
        if not path.is_dir() or (path / _META).exists():
            return
        names = sorted(entry.name for entry in path.iterdir() if entry.is_dir())
    except OSError:
        return  # the broker says why it cannot use the folder
    if any(_PARTITION.fullmatch(name) for name in names):
        return  # the broker says which file it misses
    foreign = [name for name in names if name != "lost+found" and not name.startswith(".")]
    if foreign:
        raise CommandError(
            f"--data-dir {path} has folders that no broker has made, {foreign[0]} for one: give an empty folder, or a "
            "new one"
        )


def _is_partition(path: Path) -> bool:
    """Returns whether a folder has the name and a file of a partition's log. Other folders have such names, too."""
    return _PARTITION.fullmatch(path.name) is not None and (
        (path / _PARTITION_META).exists() or any(path.glob("*.log"))
    )
