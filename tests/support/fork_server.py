"""A Python for the processes of the tests' shared Spark session. It forks from a process that has loaded their modules.

Spark starts a Python process for each streaming query, and further ones for tasks. Each of them takes half a CPU second
or more to import PySpark, pyarrow and our source, and the shared session starts hundreds of them. Commands that a test
starts as processes of their own have a plain Python, like those of users.

``ForkServer.python`` is a program that sends its arguments, environment and open files to the server. The server forks,
and the child does what ``python -m MODULE …`` does. The program waits for the end of the child.
"""

from __future__ import annotations

import array
import contextlib
import gc
import importlib
import marshal
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import traceback
import warnings
from pathlib import Path

from odradek.wire import api_keys, schemas

MODULES = (
    "uvloop",
    "pandas",
    "pyspark.daemon",
    "pyspark.worker",
    "pyspark.sql.streaming.python_streaming_source_runner",
    "pyspark.sql.worker.commit_data_source_write",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.worker.write_into_data_source",
    "odradek.batches.record_columns",
    "odradek.client.reader",
    "odradek.client.producer.columns",
    "odradek.pipelines.batch_rows",
    "odradek.pipelines.table_writer",
    "odradek.spark.offsets_source",
    "odradek.spark.read_task",
    "odradek.spark.source",
    "odradek.spark.write_task",
)
# The messages of the source and the sink, in the versions that they use.
MESSAGES = {
    api_keys.API_VERSIONS: 4, api_keys.METADATA: 13, api_keys.LIST_OFFSETS: 11, api_keys.FIND_COORDINATOR: 5,
    api_keys.OFFSET_FETCH: 9, api_keys.OFFSET_COMMIT: 9, api_keys.DESCRIBE_GROUPS: 6,
    api_keys.CONSUMER_GROUP_DESCRIBE: 1,
}  # fmt: skip
_CALL_BYTES = 1 << 20
_STREAMS = 3

# It imports only modules that are part of the interpreter, because each further import would take milliseconds.
_PROGRAM = f"""\
#!{{python}} -IS
import _signal, _socket, marshal, posix, sys

if sys.argv[1] != "-m":
    posix.execv({{python!r}}, [{{python!r}}, *sys.argv[1:]])
server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
server.setsockopt(_socket.SOL_SOCKET, _socket.SO_SNDBUF, {_CALL_BYTES})
server.connect({{address!r}})
call = marshal.dumps([sys.argv[2:], posix.environ, posix.getcwd()])
streams = b"".join(stream.to_bytes(4, sys.byteorder) for stream in range({_STREAMS}))
server.sendmsg([call], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
for stream in range({_STREAMS}):
    posix.close(stream)
child = int(server.recv(16))
_signal.signal(_signal.SIGTERM, lambda *_: posix.kill(child, _signal.SIGTERM))
posix._exit(int(server.recv(16) or b"1"))
"""


class ForkServer:
    """The server's process, which ends with this one. ``python`` is the program for Spark."""

    def __init__(self, place: Path) -> None:
        address = place / "forks"
        self.python = place / "python"
        self.python.write_text(_PROGRAM.format(python=sys.executable, address=str(address)))
        self.python.chmod(0o700)
        # The children find what the tests' process finds: Spark's workers load functions of test modules by name.
        path = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        line = [sys.executable, "-m", "support.fork_server", str(address)]
        pipe = subprocess.PIPE
        self._server = subprocess.Popen(line, stdin=pipe, stdout=pipe, env=os.environ | path)
        assert self._server.stdout is not None
        assert self._server.stdout.readline() == b"ready\n"

    def close(self) -> None:
        self._server.communicate(timeout=30)


def serve(address: str) -> None:
    """Serves until standard input is closed."""
    for name in MODULES:
        importlib.import_module(name)
    for key, version in MESSAGES.items():
        with contextlib.suppress(KeyError, ValueError):
            schemas.encode(key, version, schemas.Kind.REQUEST, {})
        with contextlib.suppress(ValueError):
            schemas.decode(key, version, schemas.Kind.RESPONSE, b"")
    gc.collect()
    gc.freeze()  # else each child's garbage collections would copy the memory of all of these objects
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(address)
    listener.listen(64)
    ended, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    print("ready", flush=True)
    callers: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([sys.stdin, listener, ended], [], [])
        if ended in ready:
            os.read(ended, 1 << 10)
            _tell_ends(callers)
        if listener in ready:
            caller, _ = listener.accept()
            _fork(caller, callers)
        if sys.stdin in ready:
            return


def _tell_ends(callers: dict[int, socket.socket]) -> None:
    while callers:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        with callers.pop(pid) as caller, contextlib.suppress(OSError):  # the caller may have been killed
            caller.send(b"%d" % (os.waitstatus_to_exitcode(status) & 0xFF))


def _fork(caller: socket.socket, callers: dict[int, socket.socket]) -> None:
    data, ancillary, _, _ = caller.recvmsg(_CALL_BYTES, socket.CMSG_SPACE(_STREAMS * array.array("i").itemsize))
    if not data:  # the caller was killed before it had sent its call
        caller.close()
        return
    streams = array.array("i", ancillary[0][2])
    if (pid := os.fork()) == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        os.closerange(_STREAMS, os.sysconf("SC_OPEN_MAX"))
        _run_module(*marshal.loads(data))
    for stream in streams:
        os.close(stream)
    callers[pid] = caller
    caller.send(b"%d" % pid)


def _run_module(arguments: list[str], environment: dict[bytes, bytes], folder: str) -> None:
    """Does in this process what ``python -m`` with these arguments does, and ends the process."""
    os.environ.clear()
    os.environb.update(environment)
    os.chdir(folder)
    sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.argv = list(arguments)
    warnings.filterwarnings("ignore", "'.*' found in sys.modules", RuntimeWarning)
    code = 0
    try:
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # closed, or no reader
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    serve(sys.argv[1])
