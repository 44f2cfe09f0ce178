"""MinIO, an object store with S3's interface, in a separate process on the loopback."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from bench.apache import Unavailable, free_port, s3a_jars
from support.brokers import eventually

MODULE = "github.com/minio/minio"
VERSION = "v0.0.0-20260212201848-7aac2a2c5b7c"
BUILD_S = 1800
USER, PASSWORD = "odradek-tests", "only on the loopback"


class ObjectStore(NamedTuple):
    """``filesystem`` is pyarrow's; ``spark_conf`` has the settings with which Spark uses the same store."""

    endpoint: str
    filesystem: Any
    jars: list[Path]

    def spark_conf(self, password: str = PASSWORD) -> dict[str, str]:
        return {
            "spark.jars": ",".join(map(str, self.jars)),
            "spark.hadoop.fs.s3a.endpoint": self.endpoint,
            "spark.hadoop.fs.s3a.access.key": USER,
            "spark.hadoop.fs.s3a.secret.key": password,
            "spark.hadoop.fs.s3a.path.style.access": "true",
        }


def minio_program() -> Path:
    """Builds MinIO and returns the program. Skips the test without Go, or if the build fails."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("there is no go command to build MinIO")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "odradek-interop" / f"minio-{VERSION}"
    path = cache / "minio"
    if not path.exists():
        cache.mkdir(parents=True, exist_ok=True)
        environment = os.environ | {"GOBIN": str(cache)}
        try:
            done = subprocess.run(
                [go, "install", f"{MODULE}@{VERSION}"],
                env=environment, capture_output=True, text=True, timeout=BUILD_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            pytest.skip(f"MinIO was not built within {BUILD_S} s")
        if done.returncode != 0:
            pytest.skip(f"MinIO cannot be built: {done.stderr.strip()[-300:]}")
    return path


@contextlib.contextmanager
def object_store(place: Path, bucket: str) -> Iterator[ObjectStore]:
    """Runs MinIO on files below ``place``, with one bucket. Skips the test with a reason if it is not available."""
    from pyarrow.fs import S3FileSystem

    program = minio_program()
    try:
        jars = s3a_jars()
    except Unavailable as why:
        pytest.skip(f"Spark cannot reach an object store: {why}")
    place.mkdir(parents=True, exist_ok=True)
    address = f"127.0.0.1:{free_port()}"
    own = {"MINIO_ROOT_USER": USER, "MINIO_ROOT_PASSWORD": PASSWORD, "MINIO_BROWSER": "off"}
    with (place / "minio.log").open("wb") as log:
        command = [str(program), "server", "--address", address, str(place / "data")]
        process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | own)
    try:
        filesystem = S3FileSystem(
            access_key=USER, secret_key=PASSWORD, endpoint_override=address, scheme="http", region="us-east-1",
            allow_bucket_creation=True, connect_timeout=2, request_timeout=5,
        )  # fmt: skip

        def serves() -> bool:
            with contextlib.suppress(OSError):
                filesystem.create_dir(bucket)
                return True
            return False

        eventually(serves, within_s=60, what="MinIO")
        yield ObjectStore(f"http://{address}", filesystem, jars)
    finally:
        process.terminate()
        process.wait(30)
