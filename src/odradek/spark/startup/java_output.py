"""What Spark's Java process prints: the log file gets all of it, and ``sys.stdout`` what Spark prints for the user.

The console sink and ``System.out`` of Java write to the standard output of the Java process. Without this module their
tables would be visible only in the log file. ``sys.stdout`` is looked up for each piece, so that a notebook shows them.
"""

from __future__ import annotations

import codecs
import os
import sys
import threading
from contextlib import suppress
from pathlib import Path


class JavaOutput:
    """A pipe for the standard output of a Java process, and the thread that reads it."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self.shows = False
        """Whether what Java prints from now on is also written to ``sys.stdout``."""
        log.parent.mkdir(parents=True, exist_ok=True)
        self._read, self.write = os.pipe()
        threading.Thread(target=self._copy, name="odradek-java-output", daemon=True).start()

    def close_write_end(self) -> None:
        """Called when Java runs, or did not start: only Java's end stays open, so that the thread ends with Java."""
        os.close(self.write)

    def _copy(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        with suppress(OSError), self._log.open("ab") as log:
            while piece := os.read(self._read, 65_536):
                log.write(piece)
                log.flush()
                text = decoder.decode(piece)
                if self.shows:
                    with suppress(OSError, ValueError, AttributeError):  # a closed or missing standard output
                        sys.stdout.write(text)
                        sys.stdout.flush()
        os.close(self._read)
