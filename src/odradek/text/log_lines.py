"""The log format of brokers and commands: one line for each log record, and indented lines for a traceback."""

from __future__ import annotations

import logging
import sys
from types import TracebackType

from odradek.core.errors import ConfigError
from odradek.text.printable import printable

_Error = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]

AUDIT_LOG, LOGIN_LOG = "kafka.authorizer.logger", "odradek.broker.logins"
"""The loggers of what the authorizer decides, by Kafka's name, and of refused logins."""


LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")

PATIENCE_S = 1.0
"""A first contact without an answer is logged after this time."""


class LineFormatter(logging.Formatter):
    """A formatter that escapes control characters. A client's id with a line feed could otherwise forge a line.

    The formatter also indents the lines of a traceback, so that they do not start like a log record.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  (the base class's name)
        return printable(super().formatMessage(record))

    def formatException(self, ei: _Error) -> str:  # noqa: N802
        return _indented(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:  # noqa: N802
        return _indented(super().formatStack(stack_info))


def escape_controls(record: logging.LogRecord) -> bool:
    """Escapes control characters in a log record's arguments and traceback, for every handler. It is a logger's filter.

    The message template does not change, because some handlers count records by it. Returns True for every record.
    """
    if isinstance(record.args, tuple):
        record.args = tuple(map(_escaped, record.args))
    if record.exc_info and not record.exc_text:
        record.exc_text = LineFormatter().formatException(record.exc_info)  # formatters use this text if it is set
    return True


def _escaped(value: object) -> object:
    if isinstance(value, int | float):
        return value
    text = str(value)
    shown = printable(text)
    return value if shown == text else shown


def log_to_stderr(level: str, form: str) -> None:
    """Configures the root logger like ``logging.basicConfig``, with ``LineFormatter``.

    ``level``: the value of ODRADEK_LOG_LEVEL. Raises ConfigError for an unknown level.
    """
    if level.upper() not in LEVELS:
        raise ConfigError(f"ODRADEK_LOG_LEVEL must be {', '.join(LEVELS[:-1])} or {LEVELS[-1]}, not {level!r}")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(form))
    logging.basicConfig(handlers=[handler], level=level.upper())


def set_last_resort() -> None:
    """Sets ``LineFormatter`` for warnings that no logging handler writes: Python writes them to stderr."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(LineFormatter("%(message)s"))


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in printable(text, line_feeds=True).split("\n"))


def open_security_logs() -> None:
    """Lets the loggers of refusals write their lines at INFO, as in Apache Kafka, if the level of the process is the
    default. Another level of the process holds for them, too."""
    for name in (AUDIT_LOG, LOGIN_LOG):
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET and logging.root.level == logging.WARNING:
            logger.setLevel(logging.INFO)
