"""``odradek log``: the partitions' logs in the data directory of a stopped broker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from odradek.cli.broker.data_directory import DataDir, check_data_dir
from odradek.cli.options import CONTEXT
from odradek.cli.terminal import EXIT_FAILED, EXIT_OK, NO_NAME, CommandError, ask, note, print_json
from odradek.cli.undo_file import pasted
from odradek.core.counts import counted

if TYPE_CHECKING:
    from odradek.storage.recovery.log_check import DataDirectory


app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings=CONTEXT,
    help="The partitions' logs of a stopped broker: check, accept a loss.",
    epilog="Example:\n\n\b\n  odradek log check --data-dir ./kafka-data",
)


@app.callback()
def _log() -> None:
    """The partitions' logs of a stopped broker: check, accept a loss."""


@contextmanager
def _opened(data_dir: Path) -> Iterator[DataDirectory]:
    from odradek.core.errors import KafkaError, StorageError
    from odradek.storage.recovery.log_check import DataDirectory

    check_data_dir(data_dir)
    try:
        directory = DataDirectory(data_dir)
        try:
            yield directory
        finally:
            directory.close()
    except (StorageError, KafkaError) as error:
        raise CommandError(str(error)) from error


def _check_known(directory: DataDirectory, names: Sequence[str]) -> None:
    """Raises CommandError for a name without a folder, with a similar one."""
    from odradek.text.similar_names import nearest

    for name in names:
        if name in (".", "..") or Path(name).name != name or not (directory.path / name).is_dir():
            similar = nearest(name, sorted(directory.partitions()))
            remedy = similar or ": a partition's name is TOPIC-NUMBER, as its folder is named"
            raise CommandError(f"{directory.path} has no partition {name or NO_NAME}{remedy}")


@app.command(
    epilog="Examples:\n\n\b\n"
    "  odradek log check --data-dir ./kafka-data                        all partitions\n"
    "  odradek log check --data-dir ./kafka-data __consumer_offsets-7"
)
def check(
    partitions: Annotated[
        list[str] | None, typer.Argument(metavar="[TOPIC-PARTITION]...", help="The partitions; by default all.")
    ] = None,
    *,
    data_dir: DataDir,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Read all record batches and print what is damaged, and what contradicts other files. Change nothing.

    Exit code 1 if something is wrong.
    """
    with _opened(data_dir) as directory:
        _check_known(directory, partitions or ())
        names = partitions or list(directory.partitions())
        faults_by_name = {name: directory.check(name) for name in names}
        lines = [line for faults in faults_by_name.values() for line in faults]
        if as_json:
            print_json({"ok": not lines, "partitions": len(names), "faults": lines})
        else:
            note(*(lines or [f"The logs are whole: {counted(len(names), 'partition')}."]))
            for name in (name for name, faults in faults_by_name.items() if faults):
                note(f"To go on without what is lost: `{pasted('odradek', 'log', 'accept', name, data_dir=data_dir)}`")
    raise typer.Exit(EXIT_FAILED if lines else EXIT_OK)


@app.command(epilog="Example:\n\n\b\n  odradek log accept --data-dir ./kafka-data __consumer_offsets-7")
def accept(
    partition: Annotated[str, typer.Argument(metavar="TOPIC-PARTITION", help="The partition that is offline.")],
    *,
    data_dir: DataDir,
    yes: Annotated[bool, typer.Option("--yes", help="Accept without asking.")] = False,
) -> None:
    """Go on without the lost records of a partition, so that the broker opens it again.

    All readable records stay. Damaged bytes stay in files that end in .lost. The next start checks all logs, as after a
    crash, and begins new leader epochs.
    """
    import sys

    with _opened(data_dir) as directory:
        _check_known(directory, [partition])
        lines = directory.check(partition)
        note(*(lines or [f"{partition} is whole."]))
        if not lines:
            return
        if not yes and not sys.stdin.isatty():
            raise CommandError("No terminal to ask at: add --yes. Nothing was changed")
        if yes or ask("Go on without these records?"):
            note(f"Accepted: {partition} ends at offset {directory.accept(partition)}.")
