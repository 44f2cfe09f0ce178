"""SIGTERM and SIGHUP for long-running commands: they raise Terminated, as Ctrl-C raises KeyboardInterrupt.

The exit code is 128 and the number of the signal: 143 for SIGTERM, 129 for SIGHUP, which a closed terminal sends.
"""

from __future__ import annotations

import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType

EXIT_HUNG_UP = 129
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143
_SIGNALS = ("SIGTERM", "SIGHUP")  # Windows has no SIGHUP
# A file system that does not respond delays the exit only this long: SIGKILL usually follows SIGTERM soon.
_MARK_S = 5.0
_AGAIN_S = 0.1


class ExitAtOnce(int):
    """An exit code with which the process ends without waiting for its threads and for Java: all work is done."""


class Terminated(BaseException):
    """SIGTERM or SIGHUP was received. Not an Exception, so that error handlers do not catch it."""

    def __init__(self, number: int, why: str = "") -> None:
        self.name = signal.Signals(number).name
        self.code = EXIT_TERMINATED if number == signal.SIGTERM else EXIT_HUNG_UP
        super().__init__(f"stopped by {self.name}" + (f": {why}" if why else ""))
        self.number = number


@contextmanager
def terminable() -> Iterator[None]:
    """Makes SIGTERM and SIGHUP raise Terminated in the main thread.

    If Terminated or Ctrl-C ends the block, this process marks its own runs on tables as ended. So a run on another
    machine can begin at once, and need not wait until these runs have been silent for long.

    Installs no handler in a thread other than the main one, and none for a signal that the process already handles or
    ignores, as ``nohup`` does with SIGHUP.
    """
    ours: list[signal.Signals] = []
    if threading.current_thread() is threading.main_thread():
        known = [signal.Signals[name] for name in _SIGNALS if hasattr(signal, name)]
        ours = [number for number in known if signal.getsignal(number) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, _raise)
    try:
        with _waking_main_thread() if ours else nullcontext():
            yield
    except (KeyboardInterrupt, Terminated):
        _mark_runs_ended()
        raise
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


def _raise(number: int, frame: FrameType | None) -> None:
    raise Terminated(number)


@contextmanager
def _waking_main_thread() -> Iterator[None]:
    """Ends a wait of the main thread when another thread has received a signal.

    Python runs its handlers in the main thread, which a signal to another thread does not wake: the handler would run
    after the wait, which has no end. A stopped process gets its signals in any of its threads when it goes on. SIGURG,
    which is otherwise ignored, ends a system call of the main thread. It is sent again until its handler has run: a
    signal just before the system call does not end it.
    """
    main, urgent = threading.main_thread().ident, getattr(signal, "SIGURG", None)
    if main is None or urgent is None or signal.getsignal(urgent) is not signal.SIG_DFL:
        yield
        return
    seen, sent = socket.socketpair()
    sent.setblocking(False)
    before = signal.set_wakeup_fd(sent.fileno(), warn_on_full_buffer=False)

    is_awake = threading.Event()

    def wake() -> None:
        while received := seen.recv(64):
            if any(number != urgent for number in received):
                is_awake.clear()
                signal.pthread_kill(main, urgent)
                while not is_awake.wait(_AGAIN_S):
                    signal.pthread_kill(main, urgent)

    waking = threading.Thread(target=wake, name="odradek-signals", daemon=True)
    signal.signal(urgent, lambda number, frame: is_awake.set())
    waking.start()
    try:
        yield
    finally:
        try:
            signal.set_wakeup_fd(before)
            sent.close()
            waking.join()
            seen.close()
        finally:  # also if a further signal ends the wait for the thread
            signal.signal(urgent, signal.SIG_DFL)


def _interrupt_main() -> None:
    """Sends SIGINT to the main thread, because a signal to another thread would not end its waits. Windows cannot."""
    send = getattr(signal, "pthread_kill", None)
    main = threading.main_thread().ident
    if send is not None and main is not None:
        send(main, signal.SIGINT)
    else:
        signal.raise_signal(signal.SIGINT)


@contextmanager
def uninterrupted(limit_s: float) -> Iterator[None]:
    """Lets a short piece of work end before Ctrl-C is raised, so that what was read is not lost half done.

    The work has ``limit_s`` from Ctrl-C on. Then, or at a second Ctrl-C, KeyboardInterrupt is raised in the middle of
    the work.
    Changes nothing in a thread other than the main one, or if Ctrl-C has another handler.
    """
    is_ours = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if not is_ours:
        yield
        return
    timer: threading.Timer | None = None

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal timer
        if timer is not None:
            raise KeyboardInterrupt
        timer = threading.Timer(limit_s, _interrupt_main)
        timer.daemon = True
        timer.start()

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if timer is not None:
            timer.cancel()
    if timer is not None:
        raise KeyboardInterrupt


def _mark_runs_ended() -> None:
    runs = sys.modules.get("odradek.pipelines.tables.runs")  # if the module is not loaded, nothing was written
    if runs is not None:
        marking = threading.Thread(target=runs.mark_all_ended, name="odradek-leave", daemon=True)
        marking.start()
        marking.join(_MARK_S)
