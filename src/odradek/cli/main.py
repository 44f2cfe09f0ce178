"""The ``odradek`` command. Sub-commands load their modules when they run, so that the command starts fast."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import typer

from odradek._version import __version__
from odradek.cli import environment
from odradek.cli.command_tree import CommandTree, Interrupt
from odradek.cli.progress_lines import kernel_notice
from odradek.cli.termination import EXIT_INTERRUPTED, ExitAtOnce, Terminated
from odradek.cli.usage.odd_words import odd_words_refused
from odradek.text.log_lines import set_last_resort

app = typer.Typer(
    name="odradek",
    cls=CommandTree,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Examples:\n\n\b\n"
    "  odradek demo\n"
    "  odradek serve --data-dir ./kafka-data --listen 127.0.0.1:9092\n"
    "  odradek groups describe --group flight-lake -b 127.0.0.1:9092",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"odradek {__version__}")
        raise typer.Exit


def _print_completion(shell: str | None) -> None:
    if shell is not None:
        from odradek.cli.completion import script

        print(script(shell))
        raise typer.Exit


@app.callback()
def _odradek(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
    show_completion: Annotated[
        str | None,
        typer.Option(
            "--show-completion",
            metavar="bash|zsh|fish",
            help="Print a completion script for a shell and exit.",
            callback=_print_completion,
            is_eager=True,
        ),
    ] = None,
) -> None:
    """Kafka's consumer-offset system in Python.

    A broker, a Spark pipeline that starts at a group's offsets and follows them, and tools for people who run
    consumers.
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the ``odradek`` command; ends the process with an exit code."""
    end = _end_of(arguments)
    if end.at_once:
        # Exits without waiting: threads of the interrupted command would delay the exit and print errors. All data
        # that they write survives kill -9, so it survives this.
        with contextlib.suppress(OSError):  # a full disk or a closed pipe: the process ends anyway
            sys.stdout.flush()
        os._exit(end.code)
    sys.exit(end.code)


class _End(NamedTuple):
    """The exit code of a command line, and whether the process ends without waiting for its threads."""

    code: int
    at_once: bool = False


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line (default: the process's own), prints its errors and returns its exit code."""
    return _end_of(arguments).code


def _end_of(arguments: Sequence[str] | None) -> _End:
    given = list(sys.argv[1:] if arguments is None else arguments)
    set_last_resort()
    try:
        with kernel_notice(is_shown=sys.stderr.isatty()):  # it is for people, not for files and pipes
            return _end_of_command(given)
    finally:
        if read := sys.modules.get("odradek.cli.command_config"):  # only commands with clients import it
            read.forget()


def _end_of_command(given: list[str]) -> _End:
    if environment.COMPLETION in os.environ:
        from odradek.cli.completion import prepare

        prepare()
    command = typer.main.get_command(app)
    try:
        if refused := odd_words_refused(command, given):
            return _End(refused)
        code = command.main(args=given, prog_name="odradek", standalone_mode=False)
        print(end="", flush=True)  # flushed here, where a closed pipe is handled
    except (Exception, KeyboardInterrupt, Interrupt) as error:
        from odradek.cli.usage.error_report import report

        code = report(error, command, given)
    except Terminated as error:
        from odradek.cli import terminal

        terminal.error_line(str(error))
        return _End(error.code, at_once=True)
    code = code if isinstance(code, int) else 0
    return _End(code, at_once=code == EXIT_INTERRUPTED or isinstance(code, ExitAtOnce))


if __name__ == "__main__":
    main()
