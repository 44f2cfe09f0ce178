"""Apache Kafka 4.3 in its own process (one KRaft node), and class paths of jars that Maven fetches.

Only benchmarks and tests use this module.
"""

from __future__ import annotations

import base64
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

from odradek.testing.ports import reserve_ports

VERSION = "4.3.0"
FETCH_TIMEOUT_S = 300
_POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>odradek-interop</groupId><artifactId>odradek-interop</artifactId><version>1</version><dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>4.3.0</version></dependency>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>4.3.0</version></dependency>
<dependency><groupId>org.slf4j</groupId><artifactId>slf4j-nop</artifactId><version>1.7.36</version></dependency>
</dependencies></project>
"""
SPARK_CONNECTOR_VERSION = "4.2.0"
# The exclusions keep Maven from fetching Spark and Scala, which are installed.
_SPARK_CONNECTOR_POM = f"""\
<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>odradek-interop</groupId><artifactId>odradek-spark-kafka</artifactId><version>1</version><dependencies>
<dependency><groupId>org.apache.spark</groupId><artifactId>spark-sql-kafka-0-10_2.13</artifactId>
<version>{SPARK_CONNECTOR_VERSION}</version>
<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions></dependency>
<dependency><groupId>org.apache.spark</groupId><artifactId>spark-token-provider-kafka-0-10_2.13</artifactId>
<version>4.0.0</version>
<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions></dependency>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-clients</artifactId><version>3.9.1</version>
<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions></dependency>
<dependency><groupId>org.apache.commons</groupId><artifactId>commons-pool2</artifactId><version>2.12.1</version>
</dependency></dependencies></project>
"""
_OLD_POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>odradek-interop</groupId><artifactId>odradek-old-kafka</artifactId><version>1</version><dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>ARTIFACT</artifactId><version>VERSION</version></dependency>
<dependency><groupId>org.slf4j</groupId><artifactId>slf4j-nop</artifactId><version>1.7.36</version></dependency>
</dependencies></project>
"""
_CONNECT_POM = f"""\
<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>odradek-interop</groupId><artifactId>odradek-connect</artifactId><version>1</version><dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>connect-runtime</artifactId><version>{VERSION}</version>
</dependency>
<dependency><groupId>org.apache.kafka</groupId><artifactId>connect-file</artifactId><version>{VERSION}</version>
</dependency>
<dependency><groupId>org.apache.kafka</groupId><artifactId>connect-mirror</artifactId><version>{VERSION}</version>
</dependency>
<dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version></dependency>
</dependencies></project>
"""
_STREAMS_POM = f"""\
<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>odradek-interop</groupId><artifactId>odradek-streams</artifactId><version>1</version><dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-streams</artifactId><version>{VERSION}</version>
</dependency>
<dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version></dependency>
</dependencies></project>
"""
_LOGGER_POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>odradek-interop</groupId><artifactId>odradek-logger</artifactId><version>1</version><dependencies>
<dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version></dependency>
</dependencies></project>
"""
# hadoop-aws has the version of the Hadoop libraries in Spark: it works only with libraries of the same version.
_S3A_POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>odradek-interop</groupId><artifactId>odradek-s3a</artifactId><version>1</version><dependencies>
<dependency><groupId>org.apache.hadoop</groupId><artifactId>hadoop-aws</artifactId><version>3.5.0</version></dependency>
</dependencies></project>
"""
_HDFS_POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>odradek-interop</groupId><artifactId>odradek-hdfs</artifactId><version>1</version><dependencies>
<dependency><groupId>org.apache.hadoop</groupId><artifactId>hadoop-client-minicluster</artifactId><version>3.5.0</version>
</dependency>
<dependency><groupId>org.slf4j</groupId><artifactId>slf4j-nop</artifactId><version>1.7.36</version></dependency>
</dependencies></project>
"""
_ICEBERG = "1.11.0"
_ICEBERG_POM = f"""\
<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>odradek-interop</groupId><artifactId>odradek-iceberg</artifactId><version>1</version><dependencies>
<dependency><groupId>org.apache.iceberg</groupId><artifactId>iceberg-core</artifactId><version>{_ICEBERG}</version>
</dependency>
<dependency><groupId>org.apache.iceberg</groupId><artifactId>iceberg-core</artifactId><version>{_ICEBERG}</version>
<classifier>tests</classifier></dependency>
<dependency><groupId>org.apache.hadoop</groupId><artifactId>hadoop-client-runtime</artifactId><version>3.4.1</version>
</dependency>
<dependency><groupId>org.xerial</groupId><artifactId>sqlite-jdbc</artifactId><version>3.49.1.0</version></dependency>
<dependency><groupId>org.eclipse.jetty.ee10</groupId><artifactId>jetty-ee10-servlet</artifactId><version>12.1.5</version>
</dependency>
<dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>2.0.17</version></dependency>
</dependencies></project>
"""
_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"


class Unavailable(Exception):
    """Java, Maven or the jars are not available; the message says which and why."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def java() -> str:
    """The path of ``java``. Raises Unavailable."""
    found = shutil.which("java") or (os.environ.get("JAVA_HOME", "") and f"{os.environ['JAVA_HOME']}/bin/java")
    if not found or not Path(found).exists():
        raise Unavailable("no java on PATH or in JAVA_HOME")
    return found


def class_path(timeout_s: float = FETCH_TIMEOUT_S, version: str = VERSION) -> str:
    """The class path of Apache Kafka's broker and tools. Raises Unavailable.

    For the default version, the environment variable ``KAFKA_CP`` if it is set. Otherwise the jars in the user's cache;
    Maven fetches them once.
    """
    java()
    if version == VERSION and (given := os.environ.get("KAFKA_CP")):
        return given
    return f"{_jars(f'kafka-{version}', _POM.replace(VERSION, version), timeout_s)}/*"


def spark_connector(timeout_s: float = FETCH_TIMEOUT_S) -> list[Path]:
    """The jars of Spark's built-in Kafka source and sink, which Maven fetches once. Raises Unavailable."""
    return sorted(_jars(f"spark-kafka-{SPARK_CONNECTOR_VERSION}", _SPARK_CONNECTOR_POM, timeout_s).glob("*.jar"))


def old_class_path(version: str, timeout_s: float = FETCH_TIMEOUT_S) -> str:
    """The class path of an old Apache Kafka, which Maven fetches once. Raises Unavailable.

    ``version``: 0.8.2.2 or 1.1.1, whose consumers keep offsets in ZooKeeper, or 3.9.1, the last version whose broker
    serves these consumers.
    """
    java()
    pom = _OLD_POM.replace("ARTIFACT", "kafka_2.13" if version.startswith("3.") else "kafka_2.11")
    return f"{_jars(f'zookeeper-kafka-{version}', pom.replace('VERSION', version), timeout_s)}/*"


def connect_class_path(timeout_s: float = FETCH_TIMEOUT_S) -> str:
    """The class path of Kafka Connect, its file connectors and MirrorMaker 2, fetched once. Raises Unavailable."""
    java()
    return f"{_jars(f'connect-{VERSION}', _CONNECT_POM, timeout_s)}/*"


def streams_class_path(timeout_s: float = FETCH_TIMEOUT_S) -> str:
    """The class path of Kafka Streams with its stores in RocksDB, fetched once. Raises Unavailable."""
    java()
    return f"{_jars(f'streams-{VERSION}', _STREAMS_POM, timeout_s)}/*"


def s3a_jars(timeout_s: float = 2 * FETCH_TIMEOUT_S) -> list[Path]:
    """The jars with which Spark reaches S3 (690 MB), fetched once. Raises Unavailable."""
    java()
    return sorted(_jars("s3a-3.5.0", _S3A_POM, timeout_s).glob("*.jar"))


def logger_jar(timeout_s: float = FETCH_TIMEOUT_S) -> Path:
    """The jar of a logger that writes to a file, in front of ``class_path``; fetched once. Raises Unavailable."""
    return next(_jars("slf4j-simple-1.7.36", _LOGGER_POM, timeout_s).glob("slf4j-simple-*.jar"))


def hdfs_jars(timeout_s: float = FETCH_TIMEOUT_S) -> Path:
    """The folder of the jars of HDFS's NameNode and DataNode (110 MB), fetched once. Raises Unavailable."""
    java()
    return _jars("hdfs-3.5.0", _HDFS_POM, timeout_s)


def iceberg_class_path(timeout_s: float = FETCH_TIMEOUT_S) -> str:
    """The class path of Iceberg's REST catalogue for tests (75 MB), fetched once. Raises Unavailable."""
    java()
    return f"{_jars(f'iceberg-{_ICEBERG}', _ICEBERG_POM, timeout_s)}/*"


def _jars(name: str, pom: str, timeout_s: float) -> Path:
    """The directory with the dependencies of ``pom``; Maven fetches them into the user's cache if they are missing."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    home = Path(os.environ.get("INTEROP_CACHE") or cache / "odradek-interop") / name
    if not (home / "done").exists():
        _fetch(home, pom, timeout_s)
    return home / "jars"


def _fetch(home: Path, pom: str, timeout_s: float) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise Unavailable(f"Kafka's jars are not cached in {home} and there is no mvn to fetch them")
    try:
        home.mkdir(parents=True, exist_ok=True)
        with (home / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # another process may fetch the same jars
            if (home / "done").exists():
                return
            (home / "pom.xml").write_text(pom)
            command = [maven, "-q", "-B", "-f", str(home / "pom.xml"), _COPY, f"-DoutputDirectory={home / 'jars'}"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
            if done.returncode == 0:
                (home / "done").touch()
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"fetching Kafka's jars failed: {error}") from error
    if done.returncode != 0:
        raise Unavailable(f"fetching Kafka's jars failed: {(done.stdout + done.stderr).strip()[-300:]}")


_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={data}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
"""


def new_cluster_id() -> str:
    """A random cluster id that does not begin with a dash. Kafka's format tool takes a dash for an option."""
    return base64.urlsafe_b64encode(b"\0" + uuid.uuid4().bytes[1:]).decode().rstrip("=")


class ApacheBroker:
    """One Apache Kafka node. ``start`` returns when its port accepts connections; ``kill`` is kill -9.

    After ``kill`` or ``stop``, the data stay in ``directory``, and the next start uses the same port.
    """

    name = "Apache Kafka " + VERSION

    def __init__(
        self,
        directory: Path,
        config: dict[str, str],
        *,
        cp: str | None = None,
        heap: str = "1g",
        java_options: Sequence[str] = (),
    ) -> None:
        self.directory = directory
        self._cp = cp or class_path()
        self._heap = heap
        self._java_options = java_options
        self._reservations = reserve_ports(2)
        self.port, controller = (reservation.port for reservation in self._reservations)
        self.bootstrap = f"127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)
        lines = _PROPERTIES.format(port=self.port, controller=controller, data=directory / "data")
        lines += "".join(f"{name}={value}\n" for name, value in config.items())
        (directory / "server.properties").write_text(lines)

    @property
    def pids(self) -> list[int]:
        return [self._process.pid] if self._process else []

    def format(self, cluster: str | None = None) -> None:
        """Formats an empty data directory. ``cluster`` is the cluster id, the same on all nodes; None: a random one."""
        cluster = cluster or new_cluster_id()
        command = [java(), *self._java_options, "-cp", self._cp, "kafka.tools.StorageTool", "format", "-t", cluster]
        command += ["-c", str(self.directory / "server.properties")]
        subprocess.run(command, check=True, capture_output=True, timeout=60)

    def spawn(self) -> None:
        """Starts the process and returns at once."""
        if not (self.directory / "data" / "meta.properties").exists():
            self.format()
        command = [java(), f"-Xmx{self._heap}", f"-Xms{self._heap}", *self._java_options, "-cp", self._cp]
        command += ["kafka.Kafka", str(self.directory / "server.properties")]
        with (self.directory / "kafka.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.directory)

    def start(self, timeout_s: float = 60) -> None:
        self.spawn()
        self.wait(timeout_s)

    def wait(self, timeout_s: float = 60) -> None:
        """Waits until the port accepts connections. Raises TimeoutError, or RuntimeError if the process ends."""
        assert self._process is not None
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise RuntimeError(f"Apache Kafka ended during its start: {self._process.returncode}")
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                time.sleep(0.1)
        raise TimeoutError("Apache Kafka did not start")

    def _end(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(timeout=60)
            self._process = None

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)
