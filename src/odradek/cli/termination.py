"""SIGTERM for commands that work for long: as Ctrl-C it ends them where they stand, with one line and exit code 143."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

EXIT_TERMINATED = 143
# Nobody waits longer for a file system that does not answer: who has sent SIGTERM sends SIGKILL soon.
_LEAVE_S = 5.0


class Terminated(BaseException):
    """SIGTERM has come. It is no Exception: what handles errors must not take it for one."""


@contextmanager
def terminable() -> Iterator[None]:
    """Within it SIGTERM raises Terminated in the main thread. What ends there, by that or by Ctrl-C, says in the tables
    it was writing to that it is over: another machine would wait for a sign of it otherwise.

    Another thread than the main one gets no handler, nor a process that has one of its own or ignores the signal.
    """
    is_ours = threading.current_thread() is threading.main_thread()
    is_ours = is_ours and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if is_ours:
        signal.signal(signal.SIGTERM, _raise)
    try:
        yield
    except (KeyboardInterrupt, Terminated):
        _leave_tables()
        raise
    finally:
        if is_ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _raise(number: int, frame: FrameType | None) -> None:
    raise Terminated("stopped by SIGTERM")


def _leave_tables() -> None:
    runs = sys.modules.get("odradek.pipelines.runs")  # else nothing was written
    if runs is not None:
        leaving = threading.Thread(target=runs.leave_all, name="odradek-leave", daemon=True)
        leaving.start()
        leaving.join(_LEAVE_S)
