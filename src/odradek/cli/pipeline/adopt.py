"""``odradek pipeline adopt``: shows what an adoption does, and does it with ``--execute``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from odradek.cli.options import check_bootstrap, check_visible, columns
from odradek.cli.pipeline.options import AdoptLine, check_pyspark
from odradek.cli.pipeline.query_runs import check_master_of
from odradek.cli.terminal import EXIT_OK, CommandError, note, note_table, print_json, spinner
from odradek.core.counts import span
from odradek.core.errors import OdradekError
from odradek.text.table_paths import is_uri, local_path

if TYPE_CHECKING:
    from odradek.pipelines.ingestion.adoption import Adoption


def run_adopt_command(request: AdoptLine) -> int:
    """Runs the command; returns the exit code. Raises OdradekError."""
    check_bootstrap(request.bootstrap_servers)
    check_visible(request.group, "--group")
    check_pyspark()
    check_master_of(request)
    if request.output is not None and Path(str(request.output)).is_file():
        raise CommandError(
            f"--output {request.output} is a file: give the folder of the table that `ingest` has written"
        )
    from odradek.pipelines.ingestion.adoption import adopt
    from odradek.pipelines.option_checks import check_local_folder, check_place
    from odradek.pipelines.options import AdoptOptions

    if request.output is not None:
        check_place("output", str(request.output))
    if request.output is not None and not is_uri(str(request.output)):
        check_local_folder("output", local_path(str(request.output)))
    given = {field.name: getattr(request, field.name) for field in dataclasses.fields(AdoptOptions)}
    try:
        with spinner("looking at the table"):
            adoption = adopt(**given | {"options": request.source_options()})
    except OdradekError as error:
        output = str(request.output or request.table)
        is_local = request.output is not None and "://" not in output
        if is_local and "is not a table of odradek" in str(error) and not Path(output).exists():
            what = f"--output {output} does not exist: give the folder of the table that `ingest` has written"
            raise CommandError(what) from error
        raise
    if request.as_json:
        print_json(_as_json(request, adoption))
    else:
        _show(request, adoption)
    return EXIT_OK


def _show(request: AdoptLine, adoption: Adoption) -> None:
    held = adoption.committed
    rows = [(tp.topic, str(tp.partition), str(at), str(held.get(tp, "-"))) for tp, at in adoption.offsets.items()]
    note_table(columns(("TOPIC", "PARTITION", "TABLE", "GROUP BEFORE"), rows, right=frozenset({1, 2, 3})))
    note(f"The offsets of the table are known by {adoption.known_by}.")
    if adoption.is_new_group:
        note(f"Group {request.group} has no offsets: if the pipeline has another group, give that one.")
    for output in adoption.outputs:
        note(f"Group {request.group} is also the group of the table {output}: both pipelines overwrite its offsets.")
    for topic in adoption.replaced:
        note(f"Topic {topic} was deleted and created again: all its records are new, so it begins at its start.")
    for topic in adoption.unknown:
        note(f"It is not known whether topic {topic} was deleted and created again since the table read it.")
    for tp, at in adoption.new.items():
        note(f"{tp} is new: neither the table nor the group has an offset of it, so it begins at its log start, {at}.")
    for tp, at in adoption.forgotten.items():
        note(
            f"A pipeline has committed {tp}, and the table has nothing of it: the table is an older copy, or was begun "
            f"again with this group, or another table has the same group. The partition begins at {at}."
        )
    for tp, at in adoption.deleted.items():
        first = adoption.offsets[tp]
        note(f"The records of {tp} at {span(at, first)} are deleted: it begins at its log start, {first}.")
    for name in sorted(adoption.lost):
        note(f"The file {name} of the newest micro-batch is lost: the table goes on without its rows.")
    if adoption.readable:
        spans = ", ".join(f"{tp} {span(start, end)}" for tp, (start, end) in adoption.readable.items())
        note(
            f"The topic still has records of this micro-batch: {spans}. The next ingest does not read them. `odradek "
            f"pipeline verify {request.output} -b …` names those that the table lacks, and `odradek pipeline replay "
            f"--offsets … --output {request.output}` adds them."
        )
    elif adoption.lost:
        note("The topic has no records of this micro-batch any more, or its offsets are not known.")
    did = "Done" if adoption.is_done else "With --execute"
    parts = [
        f"group {request.group} is set to the table's offsets",
        "earlier checkpoints can add nothing",
    ]
    if adoption.checkpoint is not None:
        parts.append(f"the checkpoint {adoption.checkpoint} is renamed to {adoption.kept_as}")
    note(f"{did}: {'; '.join(parts)}.")
    if adoption.is_done:
        note("Run ingest with the same options as before: it begins at these offsets.")


def _as_json(request: AdoptLine, adoption: Adoption) -> dict[str, object]:
    offsets = [
        {"topic": tp.topic, "partition": tp.partition, "offset": at, "committed": adoption.committed.get(tp)}
        for tp, at in adoption.offsets.items()
    ]
    return {
        "output": str(request.output or request.table),
        "group": request.group,
        "offsets": offsets,
        "known_by": adoption.known_by,
        "checkpoint": adoption.checkpoint,
        "kept_as": adoption.kept_as,
        "replaced": list(adoption.replaced),
        "unknown": list(adoption.unknown),
        "new": [{"topic": tp.topic, "partition": tp.partition, "offset": at} for tp, at in adoption.new.items()],
        "forgotten": [
            {"topic": tp.topic, "partition": tp.partition, "offset": at} for tp, at in adoption.forgotten.items()
        ],
        "deleted": [
            {"topic": tp.topic, "partition": tp.partition, "from": at, "to": adoption.offsets[tp]}
            for tp, at in adoption.deleted.items()
        ],
        "lost": sorted(adoption.lost),
        "readable": [
            {"topic": tp.topic, "partition": tp.partition, "from": start, "to": end}
            for tp, (start, end) in adoption.readable.items()
        ],
        "outputs": list(adoption.outputs),
        "done": adoption.is_done,
    }
