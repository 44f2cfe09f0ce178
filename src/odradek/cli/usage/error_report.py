"""The line and the exit code of an error that ends a command. Only a command that fails imports this module."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Sequence

import typer

from odradek.cli import terminal
from odradek.cli.command_tree import Interrupt
from odradek.cli.termination import EXIT_INTERRUPTED
from odradek.cli.usage.usage_errors import option_has, option_in_words, option_of_value, usage_line
from odradek.core.errors import OdradekError
from odradek.core.extras import command_of, extra_of

# The base class of all usage errors; typer keeps click's classes in a private module.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]

_OF_CONFIG = re.compile(r"Invalid value (\S*) for configuration ([\w.]+): ")
_UNKNOWN_OPTION = re.compile(r"unknown option ([\w.-]+)")
_LENIENT = "strictOptions=false"
_FILE = "--command-config"
_SERVER = "bootstrap server "
"""The beginning of an error about an address of a broker."""


def report(error: BaseException, command: object, given: Sequence[str]) -> int:
    """Prints a line for an error and returns the exit code. Raises the error again if it is a bug.

    ``command``: the tree of commands; ``given``: the words of the command line.
    """
    match error:
        case KeyboardInterrupt() | Interrupt() | typer.Abort():
            if given[:1] == ["produce"]:  # the command reports every Ctrl-C that comes later
                terminal.error_line("interrupted before the first record: nothing was sent")
            if given[:1] == ["demo"]:
                terminal.error_line("interrupted: the same command completes the work")
            return EXIT_INTERRUPTED
        case BrokenPipeError():
            # The reader of our output has ended (`odradek … | head`). Exit without another write to the closed pipe.
            sys.stdout = None
            return terminal.EXIT_FAILED
        case OSError(errno=errno.ENOSPC | errno.EDQUOT | errno.EFBIG):
            # A full disk is not a bug. Most often it is the disk of standard output: output is buffered, so any
            # command's print can fail. Then the flush of the rest of the buffer fails here again.
            where = f"{error.filename}: " if error.filename else "the output: "
            try:
                sys.stdout.flush()
            except OSError:
                sys.stdout, where = None, "standard output: "
            terminal.error_line(terminal.with_remedy(f"{where}{error.strerror}"))
            return terminal.EXIT_FAILED
        case OSError(errno=errno.ENAMETOOLONG | errno.ELOOP | errno.EACCES) if error.filename:
            # a path of the command line
            terminal.error_line(_with_option(f"{error.filename}: {error.strerror}", command, given))
            return terminal.EXIT_BAD_INPUT
        case OdradekError():
            terminal.error_line(_with_option(error, command, given))
            return terminal.exit_code_of(error)
        case ModuleNotFoundError() if extra := extra_of(error.name or ""):
            terminal.error_line(f"this command needs {error.name}: {command_of(extra)}")
            return terminal.EXIT_BAD_INPUT
    if not isinstance(error, _UsageError):
        raise error
    if type(error).__name__ == "NoArgsIsHelpError":
        print(error)
    else:
        terminal.error_line(usage_line(error, given, command))
    return terminal.EXIT_BAD_INPUT


def _with_option(error: Exception | str, command: object, given: Sequence[str]) -> str:
    """Returns an error's text with its remedy, and with the option whose value the text begins with."""
    text = terminal.with_remedy(error)
    if option := option_of_value(command, given, text):
        return f"{option} {text}"
    if named := option_in_words(command, given, text):
        return named
    if (wrong := _OF_CONFIG.match(text)) and option_has(given, "--config", wrong[2]):
        return f"--config {wrong[2]}={wrong[1]}: {text.removeprefix(wrong[0])}"
    if unknown := _UNKNOWN_OPTION.match(text):
        for option, name in (("--option", unknown[1]), ("--producer-option", unknown[1].removeprefix("kafka."))):
            if option_has(given, option, name):
                rest = text[unknown.end() :].replace(_LENIENT, f"--option {_LENIENT}")
                return f"{option} {name}: unknown option{rest}"
    return _with_source(text, given)


def _with_source(text: str, given: Sequence[str]) -> str:
    """Returns a text about the address of a broker, or the file of settings, with the place that it comes from: a
    variable of the environment is easily forgotten."""
    from odradek.cli.environment import BOOTSTRAP_SERVERS, COMMAND_CONFIG

    if (file := os.environ.get(COMMAND_CONFIG)) and not any(word.startswith(_FILE) for word in given):
        text = text.replace(f"{_FILE} {file}", f"{COMMAND_CONFIG} {file}")
    options = [word for word in given if word[:2] == "-b" or word.startswith("--bootstrap-server")]
    source = options[0].partition("=")[0] if options else BOOTSTRAP_SERVERS
    source = "-b" if source[:2] == "-b" else source
    if not options and not os.environ.get(BOOTSTRAP_SERVERS):
        return text
    if text.startswith(_SERVER):
        return f"{source} {text.removeprefix(_SERVER)}"
    return f"{text.removesuffix('-b')}{source}" if text.endswith("check -b") else text
