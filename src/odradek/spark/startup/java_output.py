"""What Spark's Java process prints: the log file gets all of it, and ``sys.stdout`` what Spark prints for the user.

The console sink and ``System.out`` of Java write to the standard output of the Java process. Without this module their
tables would be visible only in the log file. ``sys.stdout`` is looked up for each piece, so that a notebook shows them.

The Python workers of Spark write to Java's standard error, so their lines are only in the log file. One of them is for
the user, who waits meanwhile: that kernels are compiled. The first such line of a session is written to ``sys.stderr``.
"""

from __future__ import annotations

import codecs
import os
import sys
import threading
from contextlib import suppress
from pathlib import Path

from odradek.batches.kernels.kernel_loader import COMPILING

_LOOK_EVERY_S = 0.5
_LOG_PIECE_BYTES = 1 << 20
_NOTICES = tuple(text.encode() for text in COMPILING)


class JavaOutput:
    """A pipe for the standard output of a Java process, and the thread that reads it."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self.shows = False
        """Whether what Java prints from now on is also written to ``sys.stdout``."""
        log.parent.mkdir(parents=True, exist_ok=True)
        self._read, self.write = os.pipe()
        self._ended = threading.Event()
        known = log.stat().st_size if log.exists() else 0
        threading.Thread(target=self._copy, name="odradek-java-output", daemon=True).start()
        threading.Thread(target=self._pass_on_notice, args=(known,), name="odradek-java-notice", daemon=True).start()

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
        self._ended.set()

    def _pass_on_notice(self, begin: int) -> None:
        """Looks twice a second for the line about a compilation. ``begin``: the size of the log before this session.

        A command that shows nothing of Java shows the line only on a terminal."""
        rest = b""
        while not self._ended.wait(_LOOK_EVERY_S):
            with suppress(OSError), self._log.open("rb") as log:
                log.seek(begin)
                piece = log.read(_LOG_PIECE_BYTES)
                begin += len(piece)
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    if line.startswith(_NOTICES):
                        with suppress(ValueError, AttributeError):  # a closed or missing standard error
                            if not (self.shows or sys.stderr.isatty()):
                                return
                            sys.stderr.write(f"{line.decode(errors='replace')}\n")
                            sys.stderr.flush()
                        return
