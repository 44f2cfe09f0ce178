"""Errors of files of this machine: which file, why, and what to do about it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from odradek.core.errors import StorageError
from odradek.text.printable import one_line

_RIGHTS = (errno.EACCES, errno.EPERM)
_SHORT = (*_RIGHTS, errno.EISDIR)
_NO_ROOM = "Make room, and run the command again"
_REMEDIES = {
    errno.EISDIR: "A file has this name otherwise: give the folder another name, and run the command again",
    errno.EROFS: "Mount its file system with the right to write, or give a folder elsewhere",
    errno.ENOSPC: _NO_ROOM,
    errno.EDQUOT: f"The user's quota is used up. {_NO_ROOM}",
    errno.EMFILE: "The limit of open files is too low: raise it (ulimit -n), and run the command again",
    errno.ENFILE: "The limit of open files is too low: raise it (ulimit -n), and run the command again",
    errno.EFBIG: "The limit of the size of a file is too low: raise it (ulimit -f), and run the command again",
}


def local_error(path: Path, action: str, error: Exception) -> StorageError:
    """Returns the error that ``path`` cannot be ``action`` (``read``, ``written``), with the cause and the remedy."""
    number = error.errno if isinstance(error, OSError) else None
    why = os.strerror(number) if number in _SHORT else one_line(error)
    return StorageError(f"{path} cannot be {action}: {why}{remedy_of(error, path)}")


def remedy_of(error: Exception, path: Path | str) -> str:
    """Returns what to do about an error, as the end of a line; empty for another error than those of rights and room.
    A missing right may be that of a folder above ``path``."""
    if not isinstance(error, OSError):
        return ""
    if error.errno in _RIGHTS:
        folder = os.path.dirname(os.fsdecode(error.filename2 or error.filename or path))
        return (
            f". Let {_user()} read and write {folder} with all that is in it (chown, chmod; lsattr shows what is "
            "immutable), or run the command as its owner"
        )
    remedy = _REMEDIES.get(error.errno or 0)
    return f". {remedy}" if remedy else ""


def _user() -> str:
    return f"the user {os.geteuid()}" if hasattr(os, "geteuid") else "this user"
