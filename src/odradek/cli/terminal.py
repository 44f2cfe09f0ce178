"""Output of all commands to the terminal: error lines, headings, progress bars.

An error is one line on stderr, ``odradek: what is wrong, and what to do``. Exit codes: 0 done, 1 the work or a check
failed, 2 wrong input (an option, a directory, an address, a topic) or a package that is not installed, 130 interrupted,
143 ended by SIGTERM (pipelines). This module imports rich only when something is drawn, so ``odradek serve`` starts
without it.

Names and messages of a cluster may contain control characters. The functions of this module and ``options.columns``
show them as escapes (``text.printable``), except in data for a file or a pipe.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Protocol

from odradek.cli.progress_lines import progress_lines
from odradek.core.errors import ConfigError, ErrorCode, KafkaError, OdradekError, StorageError
from odradek.core.extras import ExtraMissing
from odradek.text.printable import printable, printable_json
from odradek.text.units import with_plain_number

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import ProgressColumn

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_BAD_INPUT = 2

# Error codes of brokers that mean wrong input: what the user named does not exist, or the name is not allowed.
_BAD_INPUT_CODES = frozenset(
    {
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.invalid_topic_exception,
        ErrorCode.invalid_group_id,
        ErrorCode.group_id_not_found,
        ErrorCode.transactional_id_not_found,
        ErrorCode.invalid_regular_expression,
        ErrorCode.invalid_config,
        ErrorCode.invalid_partitions,
        ErrorCode.invalid_replication_factor,
        ErrorCode.invalid_replica_assignment,
        ErrorCode.invalid_request,
    }
)


class CommandError(OdradekError):
    """Ends a command with one line and this exit code (default: wrong input)."""

    def __init__(self, message: str, exit_code: int = EXIT_BAD_INPUT) -> None:
        self.exit_code = exit_code
        super().__init__(message)


_RICH_VARIABLES = {"FORCE_COLOR", "TTY_COMPATIBLE"}
"""Variables by which rich takes another stdout for a terminal."""
NO_NAME = "''"
"""A group whose name is empty, in a sentence."""


_REMEDIES = {
    ": No such file or directory": ": give the path of a file that exists",
    ": Is a directory": ": give a file",
    ": Not a directory": ": a part of the path is a file: correct it",
    ": it is a file, not a directory": ": give a folder",
    ": Permission denied": ": give another path, or the right to use it",
    ": File name too long": ": give a shorter one",
    ": Too many levels of symbolic links": ": a link leads to itself: give another path",
    ": Input/output error": ": give a file that can be read",
    ": No space left on device": ": make room there, or write to another place",
}
"""What the operating system's text about a file lacks, by the end of the text."""
_LINE_END = re.compile(r"\s*\n\s*")
_OF_THE_FILE = re.compile(r"\bset (?:security\.protocol|ssl\.|sasl\.)")
"""A remedy that is a setting of the client. A person at a command line has only the file."""
_NO_ANSWER = re.compile(r"\bno (?:answer|reply) within \d+ ms$")
_TOO_SHORT = re.compile(r"(\bno reply within \d{1,3} ms): is a broker running there\? check -b$")
"""The end of a line about a broker that had less than a second for its reply: the time is the likely reason."""
_NO_PARTITION = re.compile(r"\bhas no partition -?\d+ \(it has (\d+)\)$")
_DENIED = re.compile(r"(\w+)_AUTHORIZATION_FAILED\b")
_LONGEST_TOPIC = 249
"""The most characters of a topic's name, as in Kafka."""
_RIGHTS = {
    "TOPIC": "Describe (to see it), Read (to read it) or Write (to send to it)",
    "GROUP": "Describe (to see it), Read (to commit or reset) or Delete",
    "TRANSACTIONAL_ID": "Describe (to see it) or Write (to use or end it)",
}
"""The rights that an ACL grants, by the beginning of the code of a refusal."""


def exit_code_of(error: OdradekError) -> int:
    """Returns the exit code of a command that ends with this error."""
    if isinstance(error, CommandError):
        return error.exit_code
    if isinstance(error, ConfigError | StorageError | ExtraMissing):
        return EXIT_BAD_INPUT
    if isinstance(error, KafkaError) and error.code in _BAD_INPUT_CODES:
        return EXIT_BAD_INPUT
    return EXIT_FAILED


def error_line(message: str) -> None:
    """Prints ``odradek: message`` to stderr as one line."""
    shown = printable(_LINE_END.sub(" ", message.strip()))
    print(f"odradek: {shown}{_odd_letter(message)}", file=sys.stderr, flush=True)


def _odd_letter(message: str) -> str:
    """Returns the end of a line with a word that looks like another one: ``--to 'kafka': expected kafka`` is a riddle
    if the first word has a Cyrillic letter. Empty for other lines."""
    if message.isascii() or "U+" in message:
        return ""
    from odradek.text.look_alikes import look_alike, named  # with the names of Unicode

    letter = look_alike(message)
    return "" if letter is None else f" (a word has the letter {named(letter)} among Latin letters)"


def with_remedy(error: Exception | str) -> str:
    """Returns an error's text with what it lacks: what a topic's name may have, or who grants a missing right."""
    text = re.sub(r"check bootstrap_servers$", "check -b", str(error))
    if isinstance(error, KafkaError) and error.code is ErrorCode.invalid_topic_exception and text.count(": ") < 2:
        text += _allowed_in_names(text.rpartition("topic ")[2])
    if (denied := _DENIED.search(text)) and "right" not in text:
        granted = _RIGHTS.get(denied[1], "it")
        text = f"{text.removesuffix('.')}: the user of this connection has no right to it: an ACL must grant {granted}"
    if _OF_THE_FILE.search(text) and "--command-config" not in text:
        text += " (a line of the file of --command-config)"
    if _NO_ANSWER.search(text):
        text += ": try again, with a larger --timeout where the command has one"
    text = _TOO_SHORT.sub(r"\1: try again, with a larger --timeout. If that does not help, check -b", text)
    if isinstance(error, KafkaError) and error.code is ErrorCode.topic_already_exists:
        text += ": give another name; odradek topics alter changes a topic"
    if few := _NO_PARTITION.search(text):
        text += f": give 0 to {int(few[1]) - 1}" if int(few[1]) > 1 else ": give 0"
    if ending := next((end for end in _REMEDIES if text.endswith(end)), ""):
        text += _REMEDIES[ending]
    return with_plain_number(text)


def _allowed_in_names(name: str) -> str:
    """Returns what is wrong with a topic's name, or what a name may have, as the end of a line."""
    from odradek.text.look_alikes import oddity  # with the names of Unicode

    quoted = len(name) > 1 and name[0] == name[-1] == "'"
    if (what := oddity(name[1:-1] if quoted else name)) is not None:
        return f": the name has {what}: correct it"
    if len(name) > _LONGEST_TOPIC:
        return f": a name has at most {_LONGEST_TOPIC} characters, and this one has {len(name)}"
    if name in (".", ".."):
        return ": '.' and '..' are no names"
    return ": a name has only the letters a-z and A-Z, digits, '.', '_' and '-'"


@contextmanager
def writing_out() -> Iterator[None]:
    """Ends the command with one line if standard output cannot be written, for example on a full disk.

    BrokenPipeError, for a reader that has ended, is not such an error: ``cli/main`` handles it silently.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        sys.stdout = None  # writing the rest of its buffer would fail again at exit
        raise CommandError(f"standard output: {error.strerror or error}", EXIT_FAILED) from error


def note(*lines: str) -> None:
    """Prints lines of the command's normal output and flushes; without lines, nothing.

    A line feed in a line is shown as an escape."""
    if not lines:
        return
    with writing_out():
        print("\n".join(map(printable, lines)), flush=True)


def note_table(table: str, *before: str) -> None:
    """Prints a table with these lines before it. The table has its own line ends, and its cells are printable."""
    note(*before, *table.split("\n"))


def warning_lines(*lines: str) -> None:
    """Prints lines to stderr."""
    print("\n".join(map(printable, lines)), file=sys.stderr, flush=True)


def print_json(value: object, indent: int | None = None, default: Callable[[object], object] | None = None) -> None:
    """Prints a value as JSON; control characters, also DEL, are JSON escapes."""
    with writing_out():
        print(json_line(value, indent, default), flush=True)


def json_line(value: object, indent: int | None = None, default: Callable[[object], object] | None = None) -> str:
    """Returns a value as JSON in which control characters, also DEL, are escapes."""
    return printable_json(json.dumps(value, indent=indent, default=default))


def print_data(text: str) -> None:
    """Prints lines for a program: with escapes to a terminal, unchanged to a file or a pipe."""
    with writing_out():
        print(printable(text, line_feeds=True) if sys.stdout.isatty() else text, flush=True)


def ask(question: str) -> bool:
    """Asks at the terminal and returns whether the answer is yes. Otherwise prints that nothing was changed."""
    print(f"{printable(question)} [y/N] ", end="", flush=True)
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    note("Nothing was changed.")
    return False


def heading(message: str) -> None:
    """Prints the heading of a step, underlined, so that it is visible without colour."""
    shown = printable(message)
    note("", shown, "-" * len(shown))


class Advance(Protocol):
    """Called with the number of further finished units of a long step."""

    def __call__(self, count: int) -> None: ...


@contextmanager
def progress(
    label: str, total: int, unit: str, text: Callable[[], str | None] | None = None, console: Console | None = None
) -> Iterator[Advance]:
    """Shows a progress bar with a rate on a terminal. Elsewhere, stderr gets ``text()`` after 1, 10, 100, … seconds.

    ``total``: 0 if it is unknown. Without ``text``, nothing is shown elsewhere: a later line reports the result.
    ``console``: that of stdout by default.
    """
    shown = _terminal(console) if total > 0 else None
    if shown is None:
        with progress_lines(text) if text is not None else nullcontext():
            yield lambda count: None
        return
    from rich.progress import Progress

    with Progress(*bar_columns(unit), console=shown, transient=True) as bar:
        task = bar.add_task(printable(label), total=total)
        yield lambda count: bar.advance(task, count)


def bar_columns(unit: str) -> tuple[ProgressColumn, ...]:
    """Returns the columns of every bar: the label, the finished part, the counts, the rate and the remaining time."""
    from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, Task, TextColumn
    from rich.progress import TimeRemainingColumn as Remaining
    from rich.text import Text

    class RateColumn(ProgressColumn):
        def render(self, task: Task) -> Text:
            speed = task.finished_speed or task.speed
            return Text("" if speed is None else f"{speed:,.0f} {unit}/s", style="dim")

    described = TextColumn("{task.description}", markup=False)
    return described, BarColumn(bar_width=24), MofNCompleteColumn(), RateColumn(), Remaining()


@contextmanager
def spinner(label: str, console: Console | None = None) -> Iterator[Callable[[str], None]]:
    """Shows a spinner during a wait of unknown length; shows nothing if stdout is not a terminal.

    Yields a function that changes the label.
    """
    shown = _terminal(console)
    if shown is None:
        yield lambda label: None
        return
    from rich.text import Text

    with shown.status(Text(printable(label))) as status:  # a plain str would be read as rich's markup
        yield lambda changed: status.update(Text(printable(changed)))


def _terminal(console: Console | None) -> Console | None:
    """Returns the console (that of stdout by default) if it is a terminal. Rich decides, which is imported only if its
    answer may be yes."""
    if console is None:
        if not (_RICH_VARIABLES & os.environ.keys() or _is_stdout_a_terminal()):
            return None
        console = _console()
    return console if console.is_terminal else None


def _is_stdout_a_terminal() -> bool:
    with suppress(AttributeError, ValueError):  # a closed stdout, or none
        return sys.stdout.isatty()
    return False


def _console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    return Console(highlight=False, soft_wrap=True, stderr=stderr)


def error_console() -> Console:
    """Returns a console on stderr."""
    return _console(stderr=True)
