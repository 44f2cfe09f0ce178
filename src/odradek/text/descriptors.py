"""Free file descriptors of this process."""

from __future__ import annotations

import errno
import functools
import os

from odradek.core.errors import StorageError

_OF_DELTALAKE = 14


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
