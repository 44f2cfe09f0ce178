"""SIGTERM for long-running commands: it raises Terminated, as Ctrl-C raises KeyboardInterrupt. The exit code is 143."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143
# A file system that does not respond delays the exit only this long: SIGKILL usually follows SIGTERM soon.
_MARK_S = 5.0


class Terminated(BaseException):
    """SIGTERM was received. Not an Exception, so that error handlers do not catch it."""


@contextmanager
def terminable() -> Iterator[None]:
    """Makes SIGTERM raise Terminated in the main thread.

    If Terminated or Ctrl-C ends the block, this process marks its own runs on tables as ended. So a run on another
    machine can begin at once, and need not wait until these runs have been silent for long.

    Installs no handler in a thread other than the main one, or in a process that already handles or ignores SIGTERM.
    """
    is_ours = threading.current_thread() is threading.main_thread()
    is_ours = is_ours and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if is_ours:
        signal.signal(signal.SIGTERM, _raise)
    try:
        yield
    except (KeyboardInterrupt, Terminated):
        _mark_runs_ended()
        raise
    finally:
        if is_ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _raise(number: int, frame: FrameType | None) -> None:
    raise Terminated("stopped by SIGTERM")


def _mark_runs_ended() -> None:
    runs = sys.modules.get("odradek.pipelines.runs")  # if the module is not loaded, nothing was written
    if runs is not None:
        marking = threading.Thread(target=runs.mark_all_ended, name="odradek-leave", daemon=True)
        marking.start()
        marking.join(_MARK_S)
