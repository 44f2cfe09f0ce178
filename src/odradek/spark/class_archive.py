"""Java's classes kept in a file between runs, where the setting ``spark.odradek.class.archive`` names one.

Half of what Java does until Spark runs is to load, check and link 15,000 classes. Java keeps them in an archive
(application class-data sharing, JEP 350) that later processes map into memory. The first run with the setting makes it
when it ends, which takes that run some seconds more; later ones use it. Java itself ignores an archive that was made
with another Java or another Spark: then the file is to be removed, and the next run makes it again.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Mapping
from pathlib import Path

SETTING = "spark.odradek.class.archive"
# How long Java may take to write it when it ends.
WRITE_S = 120.0


class ClassArchive:
    """The file at a path, for one Java process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._partial = path.with_name(f"{path.name}.{os.getpid()}")
        self.is_made = not path.exists()

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> ClassArchive | None:
        """None where the settings name no file."""
        name = settings.get(SETTING, "").strip()
        return cls(Path(name).expanduser().absolute()) if name else None

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
