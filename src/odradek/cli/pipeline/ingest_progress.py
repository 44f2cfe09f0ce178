"""The progress of ``odradek pipeline ingest`` and ``transform`` on stderr: a bar for people, JSON lines, or nothing."""

from __future__ import annotations

import dataclasses
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING

from odradek.cli.terminal import CommandError, bar_columns, error_console, json_line, warning_lines

if TYPE_CHECKING:
    from odradek.pipelines.commit.state import Added
    from odradek.pipelines.group_commit import CommitState
    from odradek.pipelines.tables.run_progress import RunProgress, RunSnapshot, Watch

KINDS = ("auto", "json", "none")
_EVERY_S = 1.0
_OF_FILES = ("files", "bytes", "unreadable")


def check_kind(kind: str) -> None:
    """Raises CommandError for an unknown kind of progress output."""
    if kind not in KINDS:
        raise CommandError(f"--progress {kind}: choose one of {', '.join(KINDS)}")


@contextmanager
def shown(kind: str, unread: int, *, has_end: bool, with_files: bool = True) -> Iterator[Watch | None]:
    """Yields the receiver of a run's progress; None if nothing is shown. ``unread``: the number of unread offsets.
    ``with_files``: whether the run writes files, so that JSON lines have their counts."""
    from odradek.pipelines.tables.run_progress import RunProgress

    progress = RunProgress(unread, has_end=has_end)
    if kind == "json":
        yield Lines(progress, omitted=() if with_files else _OF_FILES)
    elif kind == "auto" and sys.stderr.isatty():
        with _bar(progress, unread if has_end else None) as watch:
            yield watch
    else:
        yield None


class Lines:
    """Prints a JSON line for each micro-batch and one at the end; within a micro-batch, at most one each second."""

    def __init__(
        self, progress: RunProgress, clock: Callable[[], float] = time.monotonic, omitted: Collection[str] = ()
    ) -> None:
        self._progress = progress
        self._omitted = omitted
        self._clock = clock
        self._lock = threading.Lock()
        self._printed_s = clock()

    def on_read(self, offsets: int) -> None:
        """See ``Watch``."""
        self._progress.on_read(offsets)
        with self._lock:
            if self._clock() - self._printed_s >= _EVERY_S:
                self._print()

    def on_micro_batch(self, added: Added, offsets: int, lag: int | None) -> None:
        """See ``Watch``."""
        self._progress.on_micro_batch(added, offsets, lag)
        with self._lock:
            self._print()

    def on_end(self, group: CommitState) -> None:
        """See ``Watch``."""
        self._progress.on_end(group)
        with self._lock:
            self._print(reasons(group))

    def _print(self, more: Mapping[str, str] = MappingProxyType({})) -> None:
        self._printed_s = self._clock()
        fields = rounded(self._progress.snapshot())
        chosen = {name: value for name, value in fields.items() if name not in self._omitted}
        warning_lines(json_line(chosen | dict(more)))


def reasons(group: CommitState) -> dict[str, str]:
    """Returns the JSON fields with the reason and the remedy if a group is not committed."""
    return {} if group.is_committed else {"why_not_committed": group.why, "remedy": group.remedy}


def rounded(snapshot: RunSnapshot) -> dict[str, object]:
    """Returns the fields of a snapshot for JSON, with floats rounded. The key of ``micro_batches`` is ``batch``."""
    return {
        "batch" if name == "micro_batches" else name: round(value, 1) if isinstance(value, float) else value
        for name, value in dataclasses.asdict(snapshot).items()
    }


@contextmanager
def _bar(progress: RunProgress, total: int | None) -> Iterator[Watch]:
    from rich.progress import Progress, ProgressColumn, Task
    from rich.text import Text

    class LagColumn(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(f"lag {task.fields['lag']:,}", style="dim")

    # Lines that the command prints meanwhile appear above the bar, unless they go to a file.
    to_terminal = sys.stdout.isatty()
    columns = (*bar_columns("records"), LagColumn())
    console = error_console()
    with Progress(*columns, console=console, transient=True, redirect_stdout=to_terminal) as bar:
        task = bar.add_task("reading", total=total, lag=progress.snapshot().lag)

        def show() -> None:
            snapshot = progress.snapshot()
            bar.update(task, completed=snapshot.records, lag=snapshot.lag)

        yield _BarWatch(progress, show)


class _BarWatch:
    """Updates the counts, then the bar."""

    def __init__(self, progress: RunProgress, show: Callable[[], None]) -> None:
        self._progress = progress
        self._show = show

    def on_read(self, offsets: int) -> None:
        """See ``Watch``."""
        self._progress.on_read(offsets)
        self._show()

    def on_micro_batch(self, added: Added, offsets: int, lag: int | None) -> None:
        """See ``Watch``."""
        self._progress.on_micro_batch(added, offsets, lag)
        self._show()

    def on_end(self, group: CommitState) -> None:
        """See ``Watch``. Shows nothing: the summary follows."""
        self._progress.on_end(group)
