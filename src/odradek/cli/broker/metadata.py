"""``odradek metadata``: the metadata log of a data directory whose broker is stopped."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from odradek.cli.broker.data_directory import DataDir, check_data_dir
from odradek.cli.options import CONTEXT, columns
from odradek.cli.terminal import EXIT_FAILED, EXIT_OK, CommandError, ask, note, note_table, print_json
from odradek.core.counts import counted

if TYPE_CHECKING:
    from odradek.broker.metadata_log.diagnosis import Diagnosis
    from odradek.broker.partitions.log_directory import LogDirectory
    from odradek.broker.repair.strays import StrayLog

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings=CONTEXT,
    help="The metadata log of a stopped broker: check, repair, directories that were set aside.",
    epilog="Example:\n\n\b\n  odradek metadata check --data-dir ./kafka-data",
)


@app.callback()
def _metadata() -> None:
    """The metadata log of a stopped broker: check, repair, directories that were set aside."""


@contextmanager
def _locked(data_dir: Path) -> Iterator[LogDirectory]:
    """Locks a data directory. Raises CommandError if it does not exist, StorageError if a broker holds it."""
    from odradek.broker.partitions.log_directory import LogDirectory

    check_data_dir(data_dir)
    directory = LogDirectory(data_dir, lambda: time.time_ns() // 1_000_000)
    before = os.umask(0o077)  # as the broker's: the metadata log may have credentials
    try:
        yield directory
    except OSError as error:
        raise CommandError(f"{error.filename or data_dir}: {error.strerror or error}", EXIT_FAILED) from error
    finally:
        os.umask(before)
        directory.lock.release()


@app.command(epilog="Example:\n\n\b\n  odradek metadata check --data-dir ./kafka-data")
def check(*, data_dir: DataDir, as_json: Json = False) -> None:
    """Read the whole metadata log, its snapshots and meta.properties, and print what is wrong. Change nothing.

    Exit code 1 if something is wrong.
    """
    with _locked(data_dir) as directory:
        from odradek.broker.metadata_log.diagnosis import Diagnosis, findings
        from odradek.broker.repair.node_format import is_of_a_node, node_reader

        directory.lock.acquire()
        is_node = is_of_a_node(data_dir, directory.files)
        diagnosis = Diagnosis(data_dir, directory.files, node_reader() if is_node else None)
        lines = findings(diagnosis)
        topics = len(diagnosis.salvage.catalog.topics)
        if as_json:
            print_json({"ok": not lines, "end_offset": diagnosis.salvage.end_offset, "topics": topics, "faults": lines})
        elif lines:
            note(*lines, _remedy(diagnosis))
        else:
            note(f"The metadata log is whole: {counted(topics, 'topic')}, end offset {diagnosis.salvage.end_offset}.")
    raise typer.Exit(EXIT_FAILED if lines else EXIT_OK)


def _remedy(diagnosis: Diagnosis) -> str:
    if diagnosis.is_copy:
        return "Its next start reads the metadata log from the controller again"
    if diagnosis.is_of_a_node:
        return "Put its files back from a copy (docs/cluster.md)"
    return f"See what a repair does: `odradek metadata repair --data-dir {diagnosis.data_dir}`"


@app.command(
    epilog="Examples:\n\n\b\n"
    "  odradek metadata repair --data-dir ./kafka-data        show what it does, then ask\n"
    "  odradek metadata repair --data-dir ./kafka-data --yes"
)
def repair(
    *, data_dir: DataDir, yes: Annotated[bool, typer.Option("--yes", help="Repair without asking.")] = False
) -> None:
    """Make a catalogue of all readable records, so that the broker starts again.

    A topic whose record is lost comes back from its directories, which have its name and id. Its settings are lost, so
    it keeps all records until you set them. The present files are copied first; `odradek metadata strays` takes the
    copy back.
    """
    with _locked(data_dir) as directory:
        from odradek.broker.metadata_log.diagnosis import Diagnosis, findings
        from odradek.broker.repair.catalog_repair import RepairPlan
        from odradek.broker.repair.node_format import is_of_a_node

        if is_of_a_node(data_dir, directory.files):
            raise CommandError(
                f"{data_dir} is the directory of a node of a cluster, and only those of lone brokers are repaired: put "
                "its files back from a copy (docs/cluster.md)"
            )
        directory.lock.acquire()
        files = directory.files
        diagnosis = Diagnosis(data_dir, files)
        plan = RepairPlan(diagnosis, time.time_ns() // 1_000_000)
        if not plan.steps:
            note("Nothing needs a repair.")
            return
        note("Found:", *(f"  {line}" for line in findings(diagnosis)), "The repair:")
        note(*(f"  {number}. {step}" for number, step in enumerate(plan.steps, 1)))
        if _agrees("Repair?", yes):
            plan.carry_out()
            note(f"Repaired. The files from before are in {plan.copy}")


@app.command(
    epilog="Examples:\n\n\b\n"
    "  odradek metadata strays --data-dir ./kafka-data\n"
    "  odradek metadata strays --data-dir ./kafka-data --restore flights\n"
    "  odradek metadata strays --data-dir ./kafka-data --restore flights --as flights-of-monday"
)
def strays(
    *,
    data_dir: DataDir,
    restore: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Take this topic back; NAME is the topic or one of its directories."),
    ] = None,
    new_name: Annotated[
        str, typer.Option("--as", metavar="NAME", help="With --restore: give the topic this name.")
    ] = "",
    replace: Annotated[
        bool, typer.Option("--replace", help="With --restore: set a present topic of this name aside in exchange.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Restore without asking.")] = False,
    as_json: Json = False,
) -> None:
    """List the directories that the broker has set aside, because its catalogue did not know them; take a topic back.

    The name of such a directory ends in -stray. The broker never deletes it: if you do not need it, delete it yourself.
    """
    if restore is None and (new_name or replace):
        raise CommandError("--as and --replace need --restore NAME")
    with _locked(data_dir) as directory:
        from odradek.broker.repair import strays as stray_restore

        if restore is None:
            stray_logs = stray_restore.stray_logs(data_dir, directory.files)
            if as_json:
                print_json([_as_json(stray) for stray in stray_logs])
            elif stray_logs:
                note_table(_table(stray_logs))
            else:
                note("No directory was set aside.")
        else:
            lines = stray_restore.restore(
                data_dir, restore, new_name=new_name, replace=replace, directory=directory,
                agrees=lambda: _agrees(f"Restore {restore}?", yes),
            )  # fmt: skip
            if lines:
                note(*lines)


def _agrees(question: str, yes: bool) -> bool:
    import sys

    if yes:
        return True
    if not sys.stdin.isatty():
        raise CommandError(f"{question} No terminal to ask at: add --yes. Nothing was changed")
    return ask(question)


def _as_json(stray: StrayLog) -> dict[str, object]:
    return {
        "topic": stray.topic,
        "partition": stray.partition,
        "topic_id": _id_text(stray),
        "start_offset": stray.start,
        "end_offset": stray.end,
        "bytes": stray.size,
        "directory": stray.directory,
    }


def _id_text(stray: StrayLog) -> str | None:
    from odradek.broker.metadata_log.mark import encode_id

    return None if stray.topic_id is None else encode_id(stray.topic_id)


def _table(stray_logs: list[StrayLog]) -> str:
    rows = [
        (
            stray.topic,
            str(stray.partition),
            _id_text(stray) or "-",
            str(stray.start),
            str(stray.end),
            f"{stray.size:,}",
            stray.directory,
        )
        for stray in stray_logs
    ]
    return columns(("TOPIC", "PARTITION", "TOPIC-ID", "START", "END", "BYTES", "DIRECTORY"), rows)
