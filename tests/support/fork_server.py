"""Forks of a process that has loaded the modules of brokers, commands, members, pipelines or Spark's Python processes.

A new Python that becomes a broker takes 0.15 CPU seconds, nearly all of them for imports. Spark starts a Python process
for each streaming query, and further ones for tasks. Each of them takes half a CPU second or more to import PySpark,
pyarrow and our source, and the shared session starts hundreds of them.

The server forks, and the child does what ``python -m MODULE …`` does. ``ForkServer.start`` asks it for a child.
``ForkServer.write_program`` writes a program that sends its own arguments, environment and open files to the server,
and waits for the end of the child. If the program is killed, the child ends, too.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import gc
import importlib
import io
import itertools
import marshal
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
import warnings
from pathlib import Path

from odradek.wire import api_keys, schemas

BROKER, COMMAND, MEMBER, MONITOR, PIPELINE, SPARK = "broker", "command", "member", "monitor", "pipeline", "spark"
ICEBERG = "iceberg"
"""Pipelines with Iceberg tables, too."""
MCP = "mcp"
"""The server of ``odradek mcp``."""
EMPTY = "empty"
"""Forks of a process without our modules, for tests of this module."""
_BROKER_MODULES = (
    "uvloop",
    "odradek.broker.loop.clock",
    "odradek.broker.front_end.commit_fast_path",
    "odradek.broker.settings.description",
    "odradek.broker.control_channel",
    "odradek.broker.coordinators.group_runtime",
    "odradek.broker.handlers.k00_produce",
    "odradek.broker.handlers.k01_fetch",
    "odradek.broker.handlers.k02_list_offsets",
    "odradek.broker.handlers.k03_metadata",
    "odradek.broker.handlers.k08_offset_commit",
    "odradek.broker.handlers.k09_offset_fetch",
    "odradek.broker.handlers.k10_find_coordinator",
    "odradek.broker.handlers.k11_join_group",
    "odradek.broker.handlers.k12_heartbeat",
    "odradek.broker.handlers.k13_leave_group",
    "odradek.broker.handlers.k14_sync_group",
    "odradek.broker.handlers.k15_describe_groups",
    "odradek.broker.handlers.k18_api_versions",
    "odradek.broker.handlers.k19_create_topics",
    "odradek.broker.handlers.k20_delete_topics",
    "odradek.broker.handlers.k22_init_producer_id",
    "odradek.broker.handlers.k26_end_txn",
    "odradek.broker.handlers.k68_consumer_group_heartbeat",
    "odradek.broker.handlers.k69_consumer_group_describe",
    "odradek.broker.loop.leftovers",
    "odradek.broker.partitions.log_cleaner",
    "odradek.broker.loop.long_lists",
    "odradek.broker.coordinators.group_metadata",
    "odradek.broker.process",
    "odradek.broker.coordinators.transaction_markers",
    "odradek.broker.coordinators.transaction_runtime",
    "odradek.broker.loop.workers",
    "odradek.text.log_lines",
    "odradek.groups.kip848.regex",
    "odradek.transactions.shard",
    "random",
)
_COMMAND_MODULES = (
    "uvloop",
    "odradek.batches.columns.record_columns",
    "odradek.cli.consume.consume",
    "odradek.cli.main",
    "odradek.cli.produce.produce",
    "odradek.client.consumer.engine",
    "odradek.client.producer.columns",
    "odradek.client.producer.engine",
    "odradek.storage.cleaning.columns",
    "odradek.storage.cleaning.cleaner",
)
_MEMBER_MODULES = ("aiokafka", "confluent_kafka", "kafka", "odradek", "support.brokers")
_MONITOR_MODULES = (
    "anyio._backends._asyncio",
    "support.halted_monitor",
    "uvicorn.lifespan.off",
    "uvicorn.loops.auto",
    "uvicorn.protocols.http.auto",
    "uvloop",
    "odradek.cli.monitor.monitor",
    "odradek.monitor.process_memory",
    "odradek.monitor.changes.service",
    "odradek.monitor.disk.upkeep",
    "odradek.monitor.http.service",
    "odradek.monitor.incidents.service",
    "odradek.monitor.offsets_reader",
)
_MCP_MODULES = (
    *_COMMAND_MODULES,
    "mcp.client",
    "mcp.server.stdio",
    "mcp.server.streamable_http_manager",
    "uvicorn.loops.auto",
    "uvicorn.protocols.http.auto",
    "odradek.cli.mcp.checkpoint_tools",
    "odradek.cli.mcp.reset_tools",
    "odradek.cli.mcp.serve",
    "odradek.monitor.agents.server",
    "odradek.monitor.agents.view_tools",
)
_PIPELINE_MODULES = (
    *_COMMAND_MODULES,
    "deltalake",
    "kio.serial",
    "pyarrow.acero",
    "pydantic.type_adapter",
    "rich.console",
    "typer._adapters",
    "odradek.batches.arrow",
    "odradek.cli.groups.app",
    "odradek.cli.groups.reset",
    "odradek.cli.pipeline.adopt",
    "odradek.cli.pipeline.ingest",
    "odradek.cli.pipeline.replay",
    "odradek.spark.session",
    "support.plain_steps",
)
_ICEBERG_MODULES = (
    *_PIPELINE_MODULES,
    "pyiceberg.catalog.rest",
    "pyiceberg.catalog.sql",
    "odradek.pipelines.decoders.avro_columns",
    "odradek.pipelines.decoders.value_columns",
    "odradek.pipelines.iceberg.table",
    "odradek.pipelines.transforms.job",
)
_SPARK_MODULES = (
    "uvloop",
    "pandas",
    "pyspark.daemon",
    "pyspark.worker",
    "pyspark.sql.streaming.python_streaming_source_runner",
    "pyspark.sql.worker.commit_data_source_write",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.worker.write_into_data_source",
    "odradek.batches.columns.record_columns",
    "odradek.client.reader",
    "odradek.client.producer.columns",
    "odradek.pipelines.files.batch_rows",
    "odradek.pipelines.files.table_writer",
    "odradek.spark.offsets_source",
    "odradek.spark.piece_reader",
    "odradek.spark.source",
    "odradek.spark.writes.write_task",
)
# The messages that at least a fifth of the tests' brokers serve, in the versions of Kafka's clients and of ours.
_BROKER_MESSAGES = {
    api_keys.PRODUCE: (10,), api_keys.FETCH: (12, 18), api_keys.LIST_OFFSETS: (6,), api_keys.METADATA: (12, 13),
    api_keys.OFFSET_COMMIT: (9,), api_keys.OFFSET_FETCH: (9,), api_keys.FIND_COORDINATOR: (2, 4, 5),
    api_keys.JOIN_GROUP: (5,), api_keys.HEARTBEAT: (3,), api_keys.SYNC_GROUP: (3,), api_keys.DESCRIBE_GROUPS: (4, 6),
    api_keys.API_VERSIONS: (3, 4), api_keys.CREATE_TOPICS: (7,), api_keys.DELETE_TOPICS: (6,),
    api_keys.INIT_PRODUCER_ID: (4, 5), api_keys.END_TXN: (4, 5), api_keys.DELETE_GROUPS: (2,),
    api_keys.CONSUMER_GROUP_HEARTBEAT: (1,), api_keys.CONSUMER_GROUP_DESCRIBE: (1,),
}  # fmt: skip
# The messages of the source and the sink, in the versions that they use.
_CLIENT_MESSAGES = {
    api_keys.API_VERSIONS: (4,), api_keys.METADATA: (13,), api_keys.LIST_OFFSETS: (11,),
    api_keys.FIND_COORDINATOR: (5,), api_keys.OFFSET_FETCH: (9,), api_keys.OFFSET_COMMIT: (9,),
    api_keys.DESCRIBE_GROUPS: (6,), api_keys.CONSUMER_GROUP_DESCRIBE: (1,),
}  # fmt: skip
_MODULES = {
    BROKER: _BROKER_MODULES,
    COMMAND: _COMMAND_MODULES,
    MEMBER: _MEMBER_MODULES,
    MCP: _MCP_MODULES,
    MONITOR: _MONITOR_MODULES,
    PIPELINE: _PIPELINE_MODULES,
    ICEBERG: _ICEBERG_MODULES,
    SPARK: _SPARK_MODULES,
    EMPTY: (),
}
_CALL_BYTES = 1 << 20
_FLUSH_FAILED = 120
"""Python's exit code if the last bytes of a stream cannot be written."""
_STREAMS = 3

# The program imports only modules that are part of the interpreter, because each further import would take
# milliseconds.
_PROGRAM = f"""\
#!{{python}} -IS
import _signal, _socket, marshal, posix, sys

if sys.argv[1] != "-m":
    posix.execv({{python!r}}, [{{python!r}}, *sys.argv[1:]])
server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
server.setsockopt(_socket.SOL_SOCKET, _socket.SO_SNDBUF, {_CALL_BYTES})
server.connect({{address!r}})
call = marshal.dumps([sys.argv[2:], posix.environ, posix.getcwd(), False])
child, early = 0, []
for number in (_signal.SIGINT, _signal.SIGTERM):
    _signal.signal(number, lambda number, frame: posix.kill(child, number) if child else early.append(number))
streams = b"".join(stream.to_bytes(4, sys.byteorder) for stream in range({_STREAMS}))
server.sendmsg([call], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
for stream in range({_STREAMS}):
    posix.close(stream)
child = int(server.recv(16))
while early:
    posix.kill(child, early.pop())
posix._exit(int(server.recv(16) or b"1") & 255)
"""


def is_readable(source: socket.socket, timeout_s: float | None) -> bool:
    """Returns whether data or the end arrives within this time; ``None``: without a limit."""
    poller = select.poll()  # ``select.select`` fails for descriptors from 1024 on
    poller.register(source, select.POLLIN)
    return bool(poller.poll(None if timeout_s is None else timeout_s * 1000))


class Fork:
    """A child of the server, with the methods of ``subprocess.Popen`` that tests need. ``stdout`` is a pipe."""

    def __init__(self, server: socket.socket, stdout: int) -> None:
        self._server = server
        self.pid = int(server.recv(16))
        self.returncode: int | None = None
        self.stdout = open(stdout, "rb", buffering=0)  # noqa: SIM115  the caller closes it

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Returns the exit code, or minus the number of the signal that ended the process."""
        if self.returncode is None:
            if not is_readable(self._server, timeout):
                raise subprocess.TimeoutExpired("a fork", timeout or 0)
            self.returncode = int(self._server.recv(16))
            self._server.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        # The server may have reaped the child before its exit code is here.
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """The server's process, which ends with this one. ``kind``: the modules that it loads, such as BROKER."""

    _numbers = itertools.count()

    def __init__(self, kind: str) -> None:
        name = f"odradek-forks-{os.getpid()}-{next(self._numbers)}"
        self._address = f"\0{name}"
        # The children find what the tests' process finds: Spark's workers load functions of test modules by name.
        path = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        line = [sys.executable, "-m", "support.fork_server", name, kind]
        pipe = subprocess.PIPE
        # Its own process group: Ctrl-C reaches only this process, and the server ends when this process ends.
        self._server = subprocess.Popen(line, stdin=pipe, stdout=pipe, env=os.environ | path, process_group=0)
        assert self._server.stdout is not None
        assert self._server.stdout.readline() == b"ready\n"
        self.pid = self._server.pid

    def start(self, arguments: list[str], stdin: int, stderr: int) -> Fork:
        """Does what ``python -m`` with these arguments does, in a process group of its own."""
        server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _CALL_BYTES)
        server.connect(self._address)
        reader, writer = os.pipe()
        call = marshal.dumps([arguments, dict(os.environb), os.getcwd(), True])
        socket.send_fds(server, [call], [stdin, writer, stderr])
        os.close(writer)
        return Fork(server, reader)

    def write_program(self, path: Path) -> None:
        """Writes a program that does in a fork what Python does with the arguments ``-m MODULE …``.

        With other arguments, the program replaces itself by a Python."""
        path.write_text(_PROGRAM.format(python=sys.executable, address=self._address))
        path.chmod(0o700)

    def close(self) -> None:
        self._server.communicate(timeout=30)


def serve(name: str, kind: str) -> None:
    """Serves until standard input is closed."""
    for module in _MODULES[kind]:
        importlib.import_module(module)
    read, written = schemas.Kind.RESPONSE, schemas.Kind.REQUEST
    if kind == BROKER:
        read, written = written, read
    messages = {BROKER: _BROKER_MESSAGES, EMPTY: {}}.get(kind, _CLIENT_MESSAGES)
    for key, versions in messages.items():
        for version in versions:
            with contextlib.suppress(KeyError, ValueError):
                schemas.encode(key, version, written, {})
            with contextlib.suppress(ValueError):
                schemas.decode(key, version, read, b"")
            with contextlib.suppress(ValueError):
                schemas.decode_short(key, version, b"", 0)
    os.nice = lambda increment: 0  # beside other work, a cleaner of low priority would take minutes
    gc.collect()
    gc.freeze()  # otherwise each child's garbage collections would copy the memory of all of these objects
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(f"\0{name}")
    listener.listen(64)
    ended, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    print("ready", flush=True)
    callers: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([sys.stdin, listener, ended, *callers.values()], [], [])
        for pid, caller in callers.items():
            if caller in ready:  # the caller has ended: it sends nothing after its call
                os.kill(pid, signal.SIGKILL)
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
            caller.send(b"%d" % os.waitstatus_to_exitcode(status))


def _fork(caller: socket.socket, callers: dict[int, socket.socket]) -> None:
    data, ancillary = b"", []
    with contextlib.suppress(OSError):
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
    with contextlib.suppress(OSError):  # the caller may have been killed: the next round ends its child
        caller.send(b"%d" % pid)


def _run_module(arguments: list[str], environment: dict[bytes, bytes], folder: str, own_group: bool) -> None:
    """Does in this process what ``python -m`` with these arguments does, and ends the process."""
    if own_group:
        os.setpgid(0, 0)
    os.environ.clear()
    os.environb.update(environment)
    os.chdir(folder)
    sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.argv = list(arguments)
    _open_streams()
    warnings.filterwarnings("ignore", "'.*' found in sys.modules", RuntimeWarning)
    code = 0
    try:
        if arguments[0] == "odradek.broker" and "ODRADEK_TEST_QUORUM" in os.environ:
            from support.quorums import install

            install()
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    os._exit(_end_streams(code))


def _open_streams() -> None:
    """Standard output and error as in a new Python: buffered or not, as PYTHONUNBUFFERED says."""
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    for number, name in ((1, "stdout"), (2, "stderr")):
        raw = open(number, "wb", buffering=0 if unbuffered else -1, closefd=False)  # noqa: SIM115  open until the end
        lines = name == "stderr" or os.isatty(number)
        errors = "backslashreplace" if name == "stderr" else "strict"
        text = io.TextIOWrapper(raw, "utf-8", errors, "\n", line_buffering=lines, write_through=unbuffered)
        setattr(sys, name, text)
        setattr(sys, f"__{name}__", text)


def _end_streams(code: int) -> int:
    """Waits for other threads, calls the functions of ``atexit`` and flushes the streams, as a Python does at its end.

    Returns the exit code."""
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except OSError as error:
            with contextlib.suppress(OSError, AttributeError):
                print(f"Exception ignored while flushing: {error}", file=sys.stderr, flush=True)
            code = _FLUSH_FAILED
    return code


if __name__ == "__main__":
    serve(*sys.argv[1:])
