"""What every command shares at the terminal: error lines, headings, tables of progress.

Errors are one line on stderr, ``odradek: what is wrong, and what to do``. Exit codes: 0 done, 1 the work failed or a
check did not hold, 2 the input was wrong (an option, a directory, an address, a topic), 130 interrupted, 143 ended by
SIGTERM (pipelines).
Nothing here imports rich before something is drawn, so that ``odradek serve`` starts without it.

Every line that a command prints passes through here or through ``options.columns``: names and messages of a cluster
may hold control characters, which are shown as escapes (``core.printable``).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from odradek.core.errors import ConfigError, ErrorCode, KafkaError, OdradekError, StorageError
from odradek.core.printable import printable, printable_json

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import ProgressColumn

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
    print("odradek: " + printable(" ".join(message.split())), file=sys.stderr, flush=True)


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


def note(*lines: str) -> None:
    """Prints lines of the command's own story, at once. A line feed inside of one is shown as an escape."""
    with writing_out():
        print("\n".join(map(printable, lines)), flush=True)


def note_table(table: str, *before: str) -> None:
    """Prints a table, which ends its lines itself and holds printable cells, with these lines before it."""
    note(*before, *table.split("\n"))


def warning_lines(*lines: str) -> None:
    """Prints lines beside the output, on stderr."""
    print("\n".join(map(printable, lines)), file=sys.stderr, flush=True)


def print_json(value: Any, indent: int | None = None, default: Callable[[Any], Any] | None = None) -> None:
    """Prints a value as JSON; control characters, DEL too, are JSON's escapes."""
    with writing_out():
        print(json_line(value, indent, default), flush=True)


def json_line(value: Any, indent: int | None = None, default: Callable[[Any], Any] | None = None) -> str:
    """A value as JSON in which control characters, DEL too, are escapes."""
    return printable_json(json.dumps(value, indent=indent, default=default))


def print_data(text: str) -> None:
    """Prints lines that a program reads: a terminal gets escapes, a file or a pipe the text as it is."""
    with writing_out():
        print(printable(text, line_feeds=True) if sys.stdout.isatty() else text, flush=True)


def ask(question: str) -> bool:
    """Asks at the terminal, and says so where the answer is not yes."""
    print(f"{printable(question)} [y/N] ", end="", flush=True)
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    note("Nothing was changed.")
    return False


def counted(count: int, noun: str) -> str:
    """``1 record``, ``2,000 records``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def heading(message: str) -> None:
    """Prints the heading of a step, underlined so that it is found without colour."""
    shown = printable(message)
    note("", shown, "-" * len(shown))


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
    from rich.progress import Progress

    with Progress(*bar_columns(unit), console=console, transient=True) as bar:
        task = bar.add_task(printable(label), total=total)
        yield lambda count: bar.advance(task, count)


def bar_columns(unit: str) -> tuple[ProgressColumn, ...]:
    """What every bar shows: what is done of how much, how fast, and the time that is left."""
    from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, Task, TextColumn
    from rich.progress import TimeRemainingColumn as Remaining
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            speed = task.finished_speed or task.speed
            return Text("" if speed is None else f"{speed:,.0f} {unit}/s", style="dim")

    described = TextColumn("{task.description}", markup=False)
    return described, BarColumn(bar_width=24), MofNCompleteColumn(), Rate(), Remaining()


@contextmanager
def waiting(label: str) -> Iterator[Callable[[str], None]]:
    """A spinner while something of unknown length goes on; silent where stdout is no terminal.

    What it yields changes the label.
    """
    console = _console()
    if not console.is_terminal:
        yield lambda label: None
        return
    from rich.text import Text

    with console.status(Text(printable(label))) as status:  # a plain str would be read as rich's markup
        yield lambda changed: status.update(Text(printable(changed)))


def _console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    return Console(highlight=False, soft_wrap=True, stderr=stderr)


def error_console() -> Console:
    """Draws on stderr."""
    return _console(stderr=True)
