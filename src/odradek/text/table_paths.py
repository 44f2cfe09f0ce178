"""The paths and URIs of tables, as a user gives them, and the URI by which the package deltalake finds the same folder.

A path is never decoded: ``%41`` is three characters of a name, also in a ``file:`` URI, as for Hadoop.
"""

from __future__ import annotations

import errno
import functools
import os
import re
from pathlib import Path
from urllib.parse import quote, unquote

from odradek.core.errors import ConfigError, StorageError

DELTA_LOG = "_delta_log"
"""The folder of Delta's log, in the table's folder."""
COLUMN_MAPPING = "delta.columnMapping.mode"
"""The property of a Delta table that says whether its columns have other names in its files: ``name`` or ``id``, else
``none``. Source: Delta's protocol, "Column Mapping"."""
_OF_DELTALAKE = 14
_URI = re.compile(r"^[a-zA-Z][a-zA-Z0-9+.-]+://")
_IN_BUCKETS = frozenset(("s3", "s3a", "s3n", "gs", "abfs", "abfss"))
"""The schemes of object stores: the ones that workers can write to."""
_FILE = re.compile(r"^file:(?://(?:localhost)?)?/+", re.IGNORECASE)
_PLAIN = "/:@!$&'()*+,;=~"
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def is_uri(text: str) -> bool:
    """Returns whether a text is a URI for Spark's file systems; otherwise it is a path of this machine."""
    return _URI.match(text) is not None and _FILE.match(text) is None


def check_uri(what: str, text: str, *, workers: bool) -> None:
    """Raises ConfigError for a URI to which no pipeline can write. ``what``: the name of the option. ``workers``:
    whether the workers write there themselves, without Java's file systems."""
    if not is_uri(text):
        return
    scheme, _, rest = text.partition("://")
    scheme, place = scheme.lower(), rest.partition("/")[0]
    if scheme in _IN_BUCKETS and not place:
        raise ConfigError(f"{what} {text} names no bucket: give {scheme}://BUCKET/FOLDER")
    if scheme in ("http", "https"):  # Hadoop's file system of these schemes can only read, and says so without words
        raise ConfigError(
            f"{what} {text}: {scheme} is not a file system to write to: give a path, or a URI such as "
            "s3a://BUCKET/FOLDER or hdfs://HOST/FOLDER"
        )
    if workers and scheme not in _IN_BUCKETS:
        raise ConfigError(f"workers cannot write to {scheme}: choose --writer spark (writer='spark') for {text}")


def local_path(text: str) -> Path:
    """Returns the absolute path for a path of this machine, or a ``file:`` URI."""
    return Path(_FILE.sub("/", text)).expanduser().absolute()


def delta_uri(text: str) -> str:
    """Returns the URI by which deltalake finds the folder of a path or URI.

    Raises ConfigError if deltalake cannot find it. deltalake 1.6 decodes the names of folders once more than it encodes
    them, and reads a backslash as a slash, after it has followed symbolic links. No URI avoids that: without this check
    it would use the log of another folder.
    """
    if is_uri(text):
        scheme, _, rest = text.partition("://")
        host, slash, path = rest.partition("/")
        _check(text, path)
        scheme = "s3" if scheme in ("s3a", "s3n") else scheme
        return f"{scheme}://{host}{slash}{quote(path, safe=_PLAIN)}"
    folder = local_path(text).resolve()
    _check(text, folder.as_posix())
    return folder.as_uri()


def _check(text: str, path: str) -> None:
    if _CONTROL.search(path):
        raise ConfigError(f"{text!r}: a folder with a control character in its path cannot be a Delta table. Rename it")
    wrong = unquote(path, errors="replace").replace("\\", "/")
    if wrong == path:
        return
    at = next(number for number, (one, other) in enumerate(zip(path, wrong, strict=False)) if one != other)
    refused = path[at : at + (1 if path[at] == "\\" else 3)]
    raise ConfigError(
        f"{text}: the package deltalake does not read {refused} in a path as it is written, and would use another "
        "folder. Choose a path of a Delta table without % before two hexadecimal digits, and without a backslash; a "
        "Parquet table may have them"
    )


@functools.cache
def check_descriptors() -> None:
    """Raises StorageError if too few descriptors are free for the first call of the package deltalake.

    Its runtime opens about ten. Without them it panics, which prints lines and is no Exception in Python."""
    held: list[int] = []
    try:
        held.append(os.open(os.devnull, os.O_RDONLY))
        while len(held) < _OF_DELTALAKE:
            held.append(os.dup(held[0]))
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        raise StorageError(
            "the limit of open files is too low for the package deltalake: raise it (ulimit -n), and run the command "
            "again"
        ) from error
    finally:
        for one in held:
            os.close(one)
