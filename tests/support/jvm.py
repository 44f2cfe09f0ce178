"""How tests start Java: Spark's, and programs of Apache Kafka's jars."""

from __future__ import annotations

import subprocess
from pathlib import Path

BUILD = Path(__file__).resolve().parents[2] / "build"
# Archives of loaded classes, which ``caches`` makes.
SPARK, KAFKA = BUILD / "spark.jsa", BUILD / "kafka.jsa"
# Every Java here lives for seconds: its second compiler costs more time than its code saves.
SHORT_LIVED = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


def _options(archive: Path) -> list[str]:
    """A Java that cannot use the archive does without it, and says nothing."""
    if not archive.exists() or archive.stat().st_size == 0:
        return [*SHORT_LIVED]
    return [*SHORT_LIVED, f"-XX:SharedArchiveFile={archive}", "-Xlog:disable"]


def spark_java_options() -> str:
    """Options for the Javas of Spark."""
    return " ".join(_options(SPARK))


def kafka_command(kafka_cp: str, classes: Path | None = None, heap: str = "256m") -> list[str]:
    """Starts a program of Apache Kafka's, or one of ``classes``: its name and arguments follow. Raises Unavailable."""
    from bench.apache import java

    # The archive holds for class paths that begin with Kafka's jars.
    return [java(), f"-Xmx{heap}", *_options(KAFKA), "-cp", f"{kafka_cp}:{classes}" if classes else kafka_cp]


def compile_java(kafka_cp: str, source: Path, into: Path) -> None:
    """Once for all processes that run it: Java's compiler takes seconds. Raises Unavailable."""
    from bench.apache import java

    javac = str(Path(java()).resolve().parent / "javac")
    subprocess.run([javac, "-cp", kafka_cp, "-d", str(into), str(source)], check=True, capture_output=True, timeout=120)
