"""The errors of Hadoop's file systems, and reads beside other runs, which remove and replace files at any moment."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

from odradek.core.errors import StorageError
from odradek.text.printable import one_line

if TYPE_CHECKING:
    from py4j.java_gateway import JVMView
    from py4j.protocol import Py4JJavaError

T = TypeVar("T")
_READS = 20
_REPLACED = (".RemoteFileChangedException", ".ChecksumException")
"""The exceptions for a file that was replaced between its look-up and its read: S3A's, and that of file systems with a
second file of checksums."""


@contextlib.contextmanager
def storage_errors(uri: str, action: str) -> Iterator[None]:
    """Raises StorageError for an error of Java: ``uri`` cannot be ``action``, with what Java says in one line."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        yield
    except Py4JJavaError as error:
        said = str(error.java_exception.toString()).strip().partition("\n")[0]  # HDFS adds its server's stack trace
        raise StorageError(f"{uri} cannot be {action}: {said}") from error
    except PySparkException as error:  # PySpark's own class for some of Java's, such as IllegalArgumentException
        why = one_line(error)
        raise StorageError(f"{uri} cannot be {action}: {why}") from error


def unless_missing(jvm: JVMView, exists: Callable[[], bool], read: Callable[[], T]) -> T | None:
    """Returns what ``read`` returns; None if its file or folder is not there. Raises Py4JJavaError.

    ``exists`` is asked only after a FileNotFoundException: an earlier look proves nothing. Java has this exception also
    for a file that may not be read, or if only something below a folder has gone. Then ``read`` is called again.
    """
    from py4j.protocol import Py4JJavaError

    reads = 0
    while True:
        reads += 1
        try:
            return read()
        except Py4JJavaError as error:
            is_missing = _is_missing(jvm, error)
            if is_missing and not exists():
                return None
            if reads == _READS or not (is_missing or _is_replaced(error)):
                raise


def _is_missing(jvm: JVMView, error: Py4JJavaError) -> bool:
    return bool(jvm.java.lang.Class.forName("java.io.FileNotFoundException").isInstance(error.java_exception))


def _is_replaced(error: Py4JJavaError) -> bool:
    return str(error.java_exception.getClass().getName()).endswith(_REPLACED)
