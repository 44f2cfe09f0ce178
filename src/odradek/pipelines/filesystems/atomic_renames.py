"""Names for complete files of this machine: a name that may be taken, and a name in another folder."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import sys
import uuid
from pathlib import Path

PROBE = ".probe-"
_NO_LINKS = (errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)
"""What ``link`` says on a file system without hard links: some network file systems and removable disks."""
_HERE = -100
"""``AT_FDCWD``: paths that are not absolute begin in the current folder."""
_NO_REPLACE = 1
"""``RENAME_NOREPLACE`` of Linux."""
_NOT_THERE = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)


def give_name(new: Path, path: Path) -> None:
    """Gives a complete file its name. Raises FileExistsError if the name is taken, OSError."""
    if sys.platform == "win32":
        new.rename(path)  # fails if the name is taken
        return
    try:
        os.link(new, path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if not rename_exclusively(new, path):
            with path.open("x", encoding="utf-8") as file:  # after a crash it can be incomplete
                file.write(new.read_text(encoding="utf-8"))
                file.flush()
                os.fsync(file.fileno())


def can_move(source: Path, target: Path) -> bool:
    """Returns whether something can be moved from one folder to another. Two mounts of one device have its number, and
    nothing can be moved between them. Raises OSError."""
    name = f"{PROBE}{uuid.uuid4().hex}"
    probe = source / name
    probe.mkdir()
    try:
        probe = probe.rename(target / name)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        return False
    finally:
        probe.rmdir()
    return True


def move(old: Path, new: Path) -> None:
    """Moves a file; to another mount by a copy, which gets its name when it is complete. Raises OSError."""
    try:
        old.replace(new)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        copy = new.with_name(f".{new.name}.{uuid.uuid4().hex[:12]}")
        try:
            shutil.copyfile(old, copy)
            with copy.open("rb") as file:
                os.fsync(file.fileno())
            copy.replace(new)
        finally:
            copy.unlink(missing_ok=True)
        old.unlink(missing_ok=True)


def rename_exclusively(old: Path, new: Path) -> bool:
    """Renames a file, unless there is a file of the new name. Returns False if this system, or this file system, has no
    such call: then nothing was done. Linux has it since 3.15 (``renameat2``), vfat and exFAT too. Raises
    FileExistsError, OSError."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None) if sys.platform == "linux" else None
    if call is None:
        return False
    call.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    if call(_HERE, os.fsencode(old), _HERE, os.fsencode(new), _NO_REPLACE) == 0:
        return True
    number = ctypes.get_errno()
    if number in _NOT_THERE:
        return False
    raise OSError(number, os.strerror(number), str(old), None, str(new))
