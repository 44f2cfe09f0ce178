"""A fork server for the Python processes that Java starts for Spark: it imports their modules once.

A process that it makes has the environment, files, path, folder and process group that Java has given. It imports
odradek itself, by the same path. The server refuses if anything else would differ, such as limits, mounts or the place
of a module.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import marshal
import os
import runpy
import selectors
import signal
import socket
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

_FACTS = runpy.run_path(str(Path(__file__).parent / "python_start" / "process_facts.py"))
IMPORTED = (
    "crc32c",
    "kio.schema",
    "numba",
    "numpy",
    "pandas",
    "pyarrow.compute",
    "pyarrow.fs",
    "pyarrow.parquet",
    "pyspark.sql.conversion",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.worker.write_into_data_source",
    "pyspark.worker",
    "uvloop",
)
_REFUSAL = bytes(4)


class Refused(Exception):
    """The process would differ from the one that Java has started."""


def _take_over(given: dict[str, Any], files: list[int]) -> None:
    """Makes this process equal to the one that Java has started. Raises Refused."""
    if given["facts"] != _FACTS["facts"]():
        raise Refused
    os.chdir(given["folder"])
    sys.path[:] = [os.getcwd(), *given["path"]]
    for name in {module.partition(".")[0] for module in IMPORTED}:
        spec = PathFinder.find_spec(name, sys.path)
        if spec is None or spec.origin != sys.modules[name].__file__:
            raise Refused
    os.umask(given["umask"])
    os.setpgid(0, given["group"])
    for number in _FACTS["SIGNALS"]:
        usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, signal.SIG_IGN if number in given["ignored"] else usual)
    os.environ.clear()
    os.environ.update(given["environment"])
    for target, file in enumerate(files):
        os.dup2(file, target)
        os.close(file)
    sys.orig_argv = given["arguments"]
    sys.argv = given["arguments"][2:]
    for name in [name for name in sys.modules if name.partition(".")[0] == "support"]:
        del sys.modules[name]


class Server:
    """Forks a process for each connection, and reports its end there. The server ends with the pipe at its input."""

    def __init__(self, address: str) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(address)
        self._listener.listen(64)
        self._wake, self._wake_end = socket.socketpair()
        self._wake_end.setblocking(False)
        signal.set_wakeup_fd(self._wake_end.fileno())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._selector = selectors.DefaultSelector()
        for source in (self._listener, self._wake, sys.stdin):
            self._selector.register(source, selectors.EVENT_READ)
        self._running: dict[int, socket.socket] = {}

    def run(self) -> str | None:
        """Returns the name of a module in a process that has to run it, and None at the end of the server."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is sys.stdin:
                    return None
                if key.fileobj is self._listener:
                    if module := self._fork():
                        return module
                elif key.fileobj is self._wake:
                    self._wake.recv(1024)
                    self._reap()
                elif key.data in self._running:  # Java has killed the process that waits
                    os.kill(key.data, signal.SIGKILL)
                    self._selector.unregister(key.fileobj)

    def _fork(self) -> str | None:
        """Returns the name of the module in the new process, and None in the server."""
        connection, _ = self._listener.accept()
        data, files, _, _ = socket.recv_fds(connection, 4, 3)
        size, data = int.from_bytes(data, "big"), b""
        while len(data) < size:
            data += connection.recv(size - len(data))
        pid = os.fork()
        if pid:
            for file in files:
                os.close(file)
            self._running[pid] = connection
            self._selector.register(connection, selectors.EVENT_READ, pid)
            return None
        signal.set_wakeup_fd(-1)
        self._selector.close()
        try:
            _take_over(marshal.loads(data), files)
        except (Refused, OSError):
            connection.sendall(_REFUSAL)
            os._exit(0)
        connection.sendall(os.getpid().to_bytes(4, "big"))
        for opened in (self._listener, self._wake, self._wake_end, connection, *self._running.values()):
            opened.close()
        return str(sys.argv[0])

    def _reap(self) -> None:
        while self._running:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            connection = self._running.pop(pid)
            with contextlib.suppress(KeyError):
                self._selector.unregister(connection)
            with contextlib.suppress(OSError):
                connection.sendall(os.waitstatus_to_exitcode(status).to_bytes(4, "big", signed=True))
            connection.close()


def main() -> None:
    server = Server(sys.argv[1])
    for name in IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    module = server.run()
    if module is not None:
        runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
