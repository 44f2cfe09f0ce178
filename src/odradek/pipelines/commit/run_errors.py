"""The errors of runs that may not publish any more, each in one line. Pure."""

from __future__ import annotations

from odradek.pipelines.commit.state import QueryState, RunFenced, RunTag, TableState


def fenced(run: RunTag, state: TableState, table: str) -> RunFenced:
    """Returns the error of a run that may not publish any more."""
    return RunFenced(
        f"a newer run ({state.run.text}) has published to {table}, so this run ({run.text}) has ended: it has added "
        "nothing since. Run only one pipeline for a table; the next run continues"
    )


def overtaken(run: RunTag, state: TableState, known: QueryState, table: str) -> RunFenced:
    """Returns the error of a run whose next micro-batches another run has added since it began."""
    return RunFenced(
        f"another run ({state.run.text}) has added micro-batch {known.batch} to {table} since this run ({run.text}) "
        "began: this run has ended, and has added nothing since. Run only one pipeline for a table; the next run "
        "continues"
    )


def cut_off(run: RunTag, table: str) -> RunFenced:
    """Returns the error of a run that finds the entry on which it builds removed or replaced."""
    return RunFenced(
        f"the notes of {table} have changed while this run ({run.text}) slept or worked: its last entry is not there "
        "any more, or another one is in its place. The run has ended, and has added nothing since. Let only one "
        "pipeline write to a table, and put no copy back while one runs; the next run continues"
    )
