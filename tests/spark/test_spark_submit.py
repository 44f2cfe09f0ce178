"""A session under ``spark-submit`` uses the Spark, the master and the settings of ``spark-submit``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from odradek.spark.session import VECTOR_MODULE, SessionError, find_java

JOB = """\
import json, os
from odradek.spark.session import session

for name in {names}:
    spark = session(name, master="local[7]", java="/nowhere", config={"spark.sql.shuffle.partitions": "3"})
    jvm = spark._jvm.java.lang.ProcessHandle.current().pid()
    report = {key: spark.conf.get(key) for key in ("spark.app.name", "spark.master", "spark.sql.session.timeZone")}
    report["partitions"] = spark.conf.get("spark.sql.shuffle.partitions")
    print(json.dumps(report | {"is_parent": jvm == os.getppid()}), flush=True)
    spark.stop()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("names", "given", "zone"),
    [
        (["one"], ["spark.sql.session.timeZone=Asia/Tokyo"], "Asia/Tokyo"),
        (["first", "second"], [], "UTC"),
    ],
)
def test_the_settings_of_spark_submit_apply(tmp_path: Path, names: list[str], given: list[str], zone: str) -> None:
    """The settings still apply after the session is stopped. No second Java is started or searched for."""
    import pyspark

    try:
        java = find_java()
    except SessionError as error:
        pytest.skip(str(error))
    if VECTOR_MODULE not in java.modules:
        pytest.skip(f"spark-submit needs a Java with {VECTOR_MODULE}: {java.home} lacks this module")
    job = tmp_path / "job.py"
    job.write_text(JOB.replace("{names}", json.dumps(names)))
    home = Path(pyspark.__file__).parent
    line = [str(home / "bin" / "spark-submit"), "--master", "local[1]", "--conf", "spark.ui.enabled=false"]
    line += [part for setting in given for part in ("--conf", setting)]
    done = subprocess.run(
        [*line, str(job)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=os.environ
        | {"JAVA_HOME": str(java.home), "SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1"}
        | {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    expected = {"spark.master": "local[1]", "spark.sql.session.timeZone": zone, "partitions": "3"}
    assert reports == [expected | {"spark.app.name": name, "is_parent": True} for name in names]
