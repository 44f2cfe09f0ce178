"""The decoder of a process: plain Python first, kernels as soon as they are loaded in the background.

The import of numba takes half a second, and the first compilation on a computer several seconds. No poll waits for a
compilation. When a process has decoded ``WORTH_LOADING_BYTES``, a thread loads the compiled kernels from numba's cache,
and a poll waits for this thread (``note_decoded_bytes``). If the kernels are not in the cache, another process compiles
them, because numba holds the interpreter lock while it compiles.
"""

from __future__ import annotations

import atexit
import logging
import os
import subprocess
import sys
import threading
from importlib import import_module
from typing import Any

from odradek.batches.kernels.compile_lock import CompileLock

logger = logging.getLogger("odradek.kernels")

WORTH_LOADING_BYTES = 1 << 20
"""Plain Python decodes this number of bytes in some hundredths of a second. Each RecordBatch counts as 1 KiB more."""
COMPILING = ("compiling the kernels that decode records", "numba compiles kernels")
"""How the warnings about a compilation begin: in another process, and in this one (``kernel_cache``)."""
_LONGEST_LOAD_S = 2.0
_SILENCE_S = 1.0
_ROUNDS = 3
"""How often this process lets another process compile the kernels, before it compiles them in its own thread."""
_COMPILE = "import sys; sys.path[:] = {path!r}; from odradek.batches.kernels.kernel_compile import main; main()"


class KernelLoader:
    """The kernels of a process, and the thread that loads them. ``longest_load_s``: the longest wait of a poll."""

    def __init__(self, longest_load_s: float = _LONGEST_LOAD_S) -> None:
        self._longest_load_s = longest_load_s
        self.kernels: object = None
        """``batches.arrow.RecordSet`` when its kernels are loaded."""
        self.decoded_bytes = 0
        self.importing = threading.Lock()
        """Held while the thread imports or compiles. A child of a fork could never import a module that is half
        imported, and a process that ends must not remove LLVM while a thread uses it. So a fork and the end wait."""
        self.is_ending = False
        self.tried = threading.Event()
        """Set when the thread ends, when the kernels are known to need a compilation, or after the longest wait."""
        self._thread: threading.Thread | None = None
        self._start = threading.Lock()

    def begin(self) -> None:
        """Starts the thread, once."""
        with self._start:
            if self._thread is None and self.kernels is None:
                self._thread = threading.Thread(target=self._run, name="odradek-kernels", daemon=True)
                self._thread.start()

    def note_decoded_bytes(self, count: int) -> None:
        """Counts bytes that plain Python decodes. Enough of them start the loading, see ``note_decoded_bytes``."""
        self.decoded_bytes += count + 1024
        if self.decoded_bytes >= WORTH_LOADING_BYTES:
            self.begin()
            silence_s = min(_SILENCE_S, self._longest_load_s)
            if not self.tried.wait(silence_s):
                logger.warning(
                    "numba and the kernels that decode records take more than a second to load: plain Python decodes "
                    "records until then"
                )
                left_s = self._longest_load_s - silence_s
                if left_s <= 0 or not self.tried.wait(left_s):
                    self.tried.set()  # on a busy machine, each later batch would wait as long as this one

    def wait(self, timeout_s: float | None) -> bool:
        thread = self._thread
        if thread is not None:
            thread.join(timeout_s)
        return self.kernels is not None

    def _run(self) -> None:
        try:
            self._load()
        except ImportError as error:
            logger.info("records are decoded in plain Python: %s", error)
        except Exception:
            logger.warning("the kernels do not load: records are decoded in plain Python", exc_info=True)
        finally:
            self.tried.set()

    def _load(self) -> None:
        for _ in range(_ROUNDS):
            if self.load(cached_only=True):
                return
            self.tried.set()
            if not _compile_elsewhere():
                break
        self.load(cached_only=False)

    def load(self, *, cached_only: bool) -> bool:
        """Imports the kernels in this thread. Returns False if ``cached_only`` is set and the cache lacks a kernel.

        True does not always mean kernels: it is also the result if compilation is off or the process ends.
        """
        with self.importing:
            if self.is_ending or self.kernels is not None:
                return True
            kernel_cache = import_module("odradek.batches.kernels.kernel_cache")
            if kernel_cache.is_off():
                return True
        with self.importing, kernel_cache.loading(cached_only=cached_only, gives_up=lambda: self.is_ending):
            try:
                arrow = import_module("odradek.batches.arrow")
            except kernel_cache.KernelMissing:
                return self.is_ending
        self.kernels = arrow.RecordSet
        return True


_loader = KernelLoader()


def kernel_record_set() -> Any:
    """Returns ``batches.arrow.RecordSet`` if its kernels are loaded, else None."""
    return _loader.kernels


def note_decoded_bytes(count: int) -> None:
    """Counts bytes that plain Python decodes. Enough of them start the loading of kernels.

    Then the caller waits for the import of cached kernels, for at most ``_LONGEST_LOAD_S``: beside a thread that
    decodes in plain Python, the import would take several times as long. The caller does not wait for a compilation.
    """
    _loader.note_decoded_bytes(count)


def has_kernels() -> bool:
    """Whether kernels decode in this process now."""
    return _loader.kernels is not None


def load_cached() -> bool:
    """Loads the kernels in this thread if they are compiled; else begins to load them in the background.

    For processes that are about to read much. Returns whether the kernels are loaded.
    """
    if _loader.kernels is not None:
        return True
    try:
        if not _loader.load(cached_only=True):
            _loader.begin()
    except ImportError as error:
        logger.info("records are decoded in plain Python: %s", error)
    return _loader.kernels is not None


def wait_for_kernels(timeout_s: float | None = None) -> bool:
    """Begins to load the kernels and waits for them. Returns whether they are loaded. For benchmarks and tests."""
    _loader.begin()
    return _loader.wait(timeout_s)


# --- compilation in another process -----------------------------------------------------------------------------------


def _compile_elsewhere() -> bool:
    """Lets another process compile, and waits for its end. Returns whether the cache may have the kernels now."""
    lock = CompileLock("kernels")
    if not lock.acquire(wait=False):
        lock.acquire()  # waits until the process that compiles has ended
        lock.release()
        return True
    try:
        return run_compiler(lock)
    finally:
        lock.release()


def run_compiler(lock: CompileLock, executable: str | None = None) -> bool:
    """Starts the process that compiles, and waits for it. Returns whether it has compiled the kernels.

    ``executable``: the interpreter, by default that of this process.

    If this process ends earlier, the other one continues, so that a later process finds the kernels.
    """
    executable = executable or sys.executable
    if not _is_python(executable):
        return False
    own: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    if sys.platform == "win32":
        own["creationflags"] = subprocess.CREATE_NO_WINDOW
    else:
        own |= {"start_new_session": True, "pass_fds": () if lock.fd is None else (lock.fd,)}
    program = _COMPILE.format(path=[entry for entry in sys.path if isinstance(entry, str)])
    try:
        compiler: subprocess.Popen[bytes] = subprocess.Popen([executable, "-c", program], **own)
    except OSError:
        return False
    logger.warning(
        "%s: once on this computer, in the background, some seconds; until then plain Python decodes them", COMPILING[0]
    )
    return compiler.wait() == 0


def _is_python(executable: str | None) -> bool:
    """Returns whether the program is a Python interpreter, and not an application that contains one."""
    name = os.path.basename(executable or "").lower()
    return name.startswith("python") and not getattr(sys, "frozen", False)


# --- forks and the end ------------------------------------------------------------------------------------------------


def _before_fork() -> None:
    _loader.importing.acquire()


def _after_fork_in_parent() -> None:
    _loader.importing.release()


def _after_fork_in_child() -> None:
    """Replaces the loader: its thread exists only in the parent."""
    global _loader
    before, _loader = _loader, KernelLoader()
    _loader.kernels, _loader.decoded_bytes = before.kernels, before.decoded_bytes


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)


@atexit.register
def _end() -> None:
    _loader.is_ending = True
    with _loader.importing:
        return
