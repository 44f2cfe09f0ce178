"""The log of a broker or a command: one line per record, whatever the record holds."""

from __future__ import annotations

import logging
import sys
from types import TracebackType

from odradek.core.printable import printable

_Error = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


class LineFormatter(logging.Formatter):
    """Shows control characters as escapes. Clients choose their ids, so a line feed in one would forge a line.

    A traceback's lines are indented for the same reason: none begins as a record does.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  (the base class's name)
        return printable(super().formatMessage(record))

    def formatException(self, ei: _Error) -> str:  # noqa: N802
        return _indented(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:  # noqa: N802
        return _indented(super().formatStack(stack_info))


def escape_controls(record: logging.LogRecord) -> bool:
    """The filter of a logger whose records hold foreign text, which any handler may show: the text is made harmless.

    The message's template stays, since some handlers count records by it. Returns True: every record passes.
    """
    if isinstance(record.args, tuple):
        record.args = tuple(map(_escaped, record.args))
    if record.exc_info and not record.exc_text:
        record.exc_text = LineFormatter().formatException(record.exc_info)  # formatters use it where it is set
    return True


def _escaped(value: object) -> object:
    if isinstance(value, int | float):
        return value
    text = str(value)
    shown = printable(text)
    return value if shown == text else shown


def log_to_stderr(level: str, form: str) -> None:
    """The root's log, as ``logging.basicConfig`` sets it up, through ``LineFormatter``."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(form))
    logging.basicConfig(handlers=[handler], level=level)


def set_last_resort() -> None:
    """Has warnings that no handler takes pass through ``LineFormatter`` on their way to stderr."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(LineFormatter("%(message)s"))


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in printable(text, line_feeds=True).split("\n"))
