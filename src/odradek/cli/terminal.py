"""What every command shares at the terminal: error lines, headings, tables of progress.

Errors are one line on stderr, ``odradek: what is wrong, and what to do``. Exit codes: 0 done, 1 the work failed or a
check did not hold, 2 the input was wrong (an option, a directory, an address, a topic), 130 interrupted.
Nothing here imports rich before something is drawn, so that ``odradek serve`` starts without it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from odradek.core.errors import ConfigError, ErrorCode, KafkaError, OdradekError, StorageError

if TYPE_CHECKING:
    from rich.console import Console

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_BAD_INPUT = 2

# Errors of a cluster that mean: the user named something that is not there, or not allowed to be named so.
_BAD_INPUT_CODES = frozenset(
    {
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.invalid_topic_exception,
        ErrorCode.invalid_group_id,
        ErrorCode.group_id_not_found,
        ErrorCode.invalid_config,
        ErrorCode.invalid_partitions,
        ErrorCode.invalid_replication_factor,
        ErrorCode.invalid_request,
    }
)


class CommandError(OdradekError):
    """Ends a command with one line and this exit code (by default: the input was wrong)."""

    def __init__(self, message: str, exit_code: int = EXIT_BAD_INPUT) -> None:
        self.exit_code = exit_code
        super().__init__(message)


def exit_code_of(error: OdradekError) -> int:
    """The exit code a command ends with when this error reaches the top."""
    if isinstance(error, CommandError):
        return error.exit_code
    if isinstance(error, ConfigError | StorageError):
        return EXIT_BAD_INPUT
    if isinstance(error, KafkaError) and error.code in _BAD_INPUT_CODES:
        return EXIT_BAD_INPUT
    return EXIT_FAILED


def error_line(message: str) -> None:
    """Prints ``odradek: message`` to stderr, on one line whatever the message holds."""
    print("odradek: " + " ".join(message.split()), file=sys.stderr, flush=True)


@contextmanager
def writing_out() -> Iterator[None]:
    """Ends the command with one line where standard output cannot be written to, as on a full disk.

    A reader that has gone is no such case: BrokenPipeError is left to the shell, which is quiet about it.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        sys.stdout = None  # what its buffer still holds would fail once more at exit
        raise CommandError(f"standard output: {error.strerror or error}", EXIT_FAILED) from error


def note(message: str) -> None:
    """Prints a line of the command's own story, at once."""
    with writing_out():
        print(message, flush=True)


def counted(count: int, noun: str) -> str:
    """``1 record``, ``2,000 records``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def heading(message: str) -> None:
    """Prints the heading of a step, underlined so that it is found without colour."""
    print(f"\n{message}\n{'-' * len(message)}", flush=True)


class Advance(Protocol):
    """Told how many more units of a long step are done."""

    def __call__(self, count: int) -> None: ...


@contextmanager
def progress(label: str, total: int, unit: str) -> Iterator[Advance]:
    """A progress bar with a rate on a terminal; silent elsewhere (the step's closing line says what was done)."""
    console = _console()
    if total <= 0 or not console.is_terminal:
        yield lambda count: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn
    from rich.progress import TimeRemainingColumn as Remaining
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            speed = task.finished_speed or task.speed
            return Text("" if speed is None else f"{speed:,.0f} {unit}/s", style="dim")

    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(), Rate(), Remaining())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda count: bar.advance(task, count)


@contextmanager
def waiting(label: str) -> Iterator[Callable[[str], None]]:
    """A spinner while something of unknown length goes on; silent where stdout is no terminal.

    What it yields changes the label.
    """
    console = _console()
    if not console.is_terminal:
        yield lambda label: None
        return
    with console.status(label) as status:
        yield status.update


def _console() -> Console:
    from rich.console import Console

    return Console(highlight=False, soft_wrap=True)
