"""The commands with which tests start Java: for Spark, and for programs of Apache Kafka's jars."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
BUILD = TESTS.parent / "build"
# Archives of loaded classes. ``support.caches`` creates them.
SPARK, KAFKA = BUILD / "spark.jsa", BUILD / "kafka.jsa"
# Each Java process of the tests lives for seconds: the second compiler takes more time than its code saves.
SHORT_LIVED = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
# One compiler thread and fewer garbage collections: a start of Spark takes a tenth less CPU time. Hadoop starts `chmod`
# for each file that it writes to a local disk, and Java by default starts another program first, which starts `chmod`.
_OF_SPARK = ["-XX:CICompilerCount=1", "-XX:NewSize=192m"]
if sys.platform == "linux":
    _OF_SPARK.append("-Djdk.lang.Process.launchMechanism=VFORK")


def _options(archive: Path) -> list[str]:
    """A Java that cannot use the archive runs without it and prints no message."""
    if not archive.exists() or archive.stat().st_size == 0:
        return [*SHORT_LIVED]
    return [*SHORT_LIVED, f"-XX:SharedArchiveFile={archive}", "-Xlog:disable"]


def spark_java_options() -> str:
    """Options for Spark's Java processes."""
    return " ".join([*_OF_SPARK, *_options(SPARK)])


def kafka_java_options() -> list[str]:
    """Options for the Java processes of Apache Kafka."""
    return _options(KAFKA)


def kafka_command(kafka_cp: str, classes: Path | None = None, heap: str = "256m") -> list[str]:
    """Returns the beginning of a command for a Java program of Apache Kafka or of ``classes``. The caller adds the
    program's name and arguments. Raises Unavailable."""
    from bench.apache import java

    # Java uses the archive for class paths that begin with Kafka's jars.
    return [java(), f"-Xmx{heap}", *kafka_java_options(), "-cp", f"{kafka_cp}:{classes}" if classes else kafka_cp]


def java_classes(kafka_cp: str, folder: str = "java") -> Path:
    """Compiles the tests' own Java programs once: those in folders named ``folder``. Returns the folder of the classes.

    Raises Unavailable."""
    from bench.apache import java

    sources = sorted(TESTS.glob(f"*/{folder}/*.java"))
    digest = hashlib.sha256(kafka_cp.encode() + b"".join(path.read_bytes() for path in sources))
    classes = BUILD / f"classes-{digest.hexdigest()[:16]}"
    if not classes.exists():
        fresh = BUILD / f"{classes.name}.{os.getpid()}"
        fresh.mkdir(parents=True)
        javac = str(Path(java()).resolve().parent / "javac")
        command = [javac, "-cp", kafka_cp, "-d", str(fresh), *map(str, sources)]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        try:
            fresh.rename(classes)
        except OSError:  # another process was faster
            shutil.rmtree(fresh)
    return classes


class KafkaTools:
    """Apache Kafka's command-line tools, all in one Java process, because a tool takes longer to start than to run.

    Without Java's compiler, each tool runs in a separate Java process.
    """

    def __init__(self, kafka_cp: str) -> None:
        self._kafka_cp = kafka_cp
        self._java: subprocess.Popen[str] | None = None

    def run(
        self, name: str, *arguments: str, stdin: str = "", timeout_s: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Runs the main method of the class ``name`` with these arguments.

        If it takes too long, raises AssertionError, or subprocess.TimeoutExpired if Java's compiler is missing.
        """
        try:
            classes = java_classes(self._kafka_cp)
        except FileNotFoundError:
            command = [*kafka_command(self._kafka_cp), name, *arguments]
            return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout_s, check=False)
        if self._java is None or self._java.poll() is not None:
            self._java = subprocess.Popen(
                [*kafka_command(self._kafka_cp, classes), "ToolRunner"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
        assert self._java.stdin is not None
        assert self._java.stdout is not None
        limit = threading.Timer(timeout_s, self._java.kill)
        limit.start()
        words = (base64.b64encode(word.encode()).decode() for word in (name, stdin, *arguments))
        print(*words, file=self._java.stdin, flush=True)
        answer = self._java.stdout.readline().rstrip("\n").split(" ")
        limit.cancel()
        assert len(answer) == 3, f"{name} {arguments}: no answer within {timeout_s} s"
        code, output, errors = answer
        printed = [base64.b64decode(text).decode() for text in (output, errors)]
        return subprocess.CompletedProcess([name, *arguments], int(code), *printed)

    def close(self) -> None:
        if self._java is not None:
            self._java.kill()
            self._java.communicate()
