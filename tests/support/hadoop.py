"""Hadoop's file systems without Spark: a Java process with Spark's jars, and HDFS in a process of its own."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from bench.apache import Unavailable, hdfs_jars, java
from support.brokers import eventually

JAVA = Path(__file__).parent / "hadoop_java"


@contextlib.contextmanager
def hadoop(jars: Sequence[Path] = ()) -> Iterator[Any]:
    """Starts Java with the jars of the installed PySpark and these ``jars``; yields py4j's gateway. Skips the test
    without Java."""
    import pyspark
    from py4j.java_gateway import JavaGateway

    try:
        program = java()
    except Unavailable as why:
        pytest.skip(f"Hadoop needs Java: {why}")
    home = Path(pyspark.__file__).parent / "jars"
    (bridge,) = home.glob("py4j-*.jar")
    path = os.pathsep.join([f"{home}/*", *map(str, jars)])
    gateway = JavaGateway.launch_gateway(
        jarpath=str(bridge), classpath=path, java_path=program, die_on_exit=True, redirect_stderr=None
    )
    try:
        yield gateway
    finally:
        gateway.shutdown()


@contextlib.contextmanager
def hdfs(place: Path) -> Iterator[str]:
    """Runs HDFS on files below ``place``; yields its URI. Skips the test with a reason if it is not available."""
    try:
        command = [java(), "-Xmx300m", "-cp", f"{hdfs_jars()}/*", str(JAVA / "MiniDfs.java")]
    except Unavailable as why:
        pytest.skip(f"HDFS is not available: {why}")
    place.mkdir(parents=True, exist_ok=True)
    port = place / "port"
    with (place / "hdfs.log").open("wb") as log:
        process = subprocess.Popen([*command, str(place / "data"), str(port)], stdout=log, stderr=log)
    try:
        eventually(lambda: port.exists() or process.poll() is not None, within_s=240, what="HDFS")
        assert process.poll() is None, (place / "hdfs.log").read_text()[-2000:]
        yield f"hdfs://127.0.0.1:{port.read_text()}"
    finally:
        process.terminate()
        process.wait(30)
