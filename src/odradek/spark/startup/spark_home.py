"""A home directory of Spark without ``pyspark.zip``, so that Python workers import the installed PySpark.

Spark starts several Python processes for each query. Their first import path is ``$SPARK_HOME/python/lib/pyspark.zip``,
and Python keeps no bytecode for modules in a zip file: each process compiles PySpark again, which takes 0.7 to 1 CPU
second. The home made here has links to Spark's other directories, such as ``jars``, and an empty directory ``python``.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import sysconfig
import uuid
from pathlib import Path

from odradek.spark.startup.user_cache import make_private, user_cache

_PYTHON = "python"
_LEFT_OUT = (_PYTHON, "__pycache__")


def spark_home(master: str) -> Path:
    """Returns the home that Spark is started with: Spark's own one, or a home without ``pyspark.zip``.

    Spark's own home is used in four cases: for a cluster, because its machines have homes of their own; if the user has
    set ``SPARK_HOME``; if PySpark is not a package of this Python; if the other home cannot be made in the user's cache
    folder.
    """
    from pyspark.find_spark_home import _find_spark_home

    home = Path(_find_spark_home())
    if not master.startswith("local") or "SPARK_HOME" in os.environ or not _is_installed(home):
        return home
    entries = sorted(entry for entry in home.iterdir() if entry.name not in _LEFT_OUT and _is_plain_folder(entry))
    # The name depends on the linked entries, so another installation gets another home.
    name = hashlib.sha256("\n".join(map(str, entries)).encode()).hexdigest()[:16]
    with contextlib.suppress(OSError, RuntimeError):  # no cache folder, a read-only one, or a system without links
        links = user_cache() / "spark-home" / name
        if make_private(links.parent):
            if not links.is_dir():
                _make(links, entries)
            return links
    return home


def _is_plain_folder(entry: Path) -> bool:
    """Returns whether ``entry`` is one of Spark's directories, such as ``jars``, and no Python package."""
    return entry.is_dir() and not (entry / "__init__.py").exists()


def _is_installed(home: Path) -> bool:
    """Returns whether every process of this Python finds PySpark and py4j without ``PYTHONPATH``."""
    packages = {Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib")}
    return home.resolve().parent in packages and any((folder / "py4j").is_dir() for folder in packages)


def _make(links: Path, entries: list[Path]) -> None:
    """Makes the home under another name and then renames it: other processes may make it too. Raises OSError."""
    partial = links.with_name(f"{links.name}.{uuid.uuid4().hex[:8]}")
    try:
        (partial / _PYTHON).mkdir(parents=True)
        for entry in entries:
            (partial / entry.name).symlink_to(entry.resolve())
        with contextlib.suppress(OSError):  # another process was faster
            partial.rename(links)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    if not links.is_dir():
        raise FileNotFoundError(links)
