"""Java's classes kept in a file between runs: by default from the second run on, or where a setting says.

Half of what Java does until Spark runs is to load, check and link 15,000 classes. Java keeps them in an archive
(application class-data sharing, JEP 350) that later processes map into memory. The run that makes it takes some seconds
more at its end, and the file 150 MB. So by default the first run only leaves a note that it was here, and the second
one makes the archive: a container that is thrown away after one run never does. The file's name says for which Java and
which Spark it is, so an update of either begins again.

The setting ``spark.odradek.class.archive`` names a file, which the first run makes, or is ``none``.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import time
from collections.abc import Mapping
from pathlib import Path

SETTING = "spark.odradek.class.archive"
NONE = "none"
WRITE_S = 120.0
"""How long Java may take to write it when it ends."""
KEPT_S = 30 * 86_400
"""Archives in our folder that no run has used for so long are removed when another is made."""
_SUFFIX, _NOTE = ".jsa", ".seen"
_SHARING_OPTIONS = ("SharedArchiveFile", "ArchiveClassesAtExit", "-Xshare")
# Where a user gives Java options without us.
_ELSEWHERE = ("SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS")


class ClassArchive:
    """The file at a path, for one Java process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._partial = path.with_name(f"{path.name}.{os.getpid()}")
        self.is_made = not path.exists()

    @classmethod
    def of(cls, settings: Mapping[str, str], default: Path | None = None) -> ClassArchive | None:
        """The one that the settings name, or else the default; None where there is none to use or to make yet.

        ``default`` is a path from ``default_path``. Its folder is made where it is missing.
        """
        name = settings.get(SETTING, "").strip()
        if name:
            return None if name == NONE else cls(Path(name).expanduser().absolute())
        options = [
            settings.get("spark.driver.extraJavaOptions", ""),
            *(os.environ.get(name, "") for name in _ELSEWHERE),
        ]
        if default is None or any(word in option for word in _SHARING_OPTIONS for option in options):
            return None
        note = default.with_suffix(_NOTE)
        try:
            if not _is_private(default.parent):
                return None
            if default.exists():
                os.utime(default)
            elif not note.exists():
                note.touch()
                return None
            else:
                _remove_old(default.parent)
        except OSError:  # a home that cannot be written to, or none: Java starts as it would without us
            return None
        return cls(default)

    @property
    def java_option(self) -> str:
        """What has Java use the archive, or make it. The folder is made where it is missing."""
        if not self.is_made:
            return shlex.quote(f"-XX:SharedArchiveFile={self.path}")
        with contextlib.suppress(OSError):  # then Java says so in its log, and goes on
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return shlex.quote(f"-XX:ArchiveClassesAtExit={self._partial}")

    def keep(self, *, complete: bool) -> None:
        """Puts into place what the process has written, once it has ended: whole, or not at all."""
        with contextlib.suppress(OSError):
            if complete:
                self._partial.replace(self.path)
            else:
                self._partial.unlink(missing_ok=True)


def default_path(java_home: Path, spark_home: Path) -> Path:
    """Where the archive for this Java and this Spark is kept: in the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    # Java compares the times of the jars with those in the archive.
    dated = [java_home.resolve() / "lib" / "modules", (spark_home / "jars").resolve()]
    parts = [f"{path} {path.stat().st_mtime_ns if path.exists() else 0}" for path in dated]
    name = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    return Path(cache) / "odradek" / "java-classes" / f"{name}{_SUFFIX}"


def _is_private(folder: Path) -> bool:
    """Whether only this user can write to the folder: Java runs what is in an archive."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    return not hasattr(os, "getuid") or (found.st_uid == os.getuid() and not found.st_mode & 0o022)


def _remove_old(folder: Path) -> None:
    """Archives that no run has used for long, and what a run that was killed has left of one."""
    before_s = time.time() - KEPT_S
    for file in folder.iterdir():
        is_ours = _SUFFIX in file.suffixes or file.suffix == _NOTE
        with contextlib.suppress(OSError):
            if is_ours and file.stat().st_mtime < before_s:
                file.unlink()
