"""A separate process with a Spark session that got secrets, as ``odradek pipeline … --conf`` starts it.

``spark_secrets_child.py JAVA NAME=VALUE…``: prints as JSON what the machine and Spark show: the command line, the
settings, names of files and more. The test looks for the values.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from odradek.cli.options import named_values
from odradek.pipelines.queries import start_spark
from odradek.spark import session as spark_session


def main(java: str, given: list[str]) -> None:
    found = spark_session.find_java(java)
    spark_session.find_java = lambda wanted="auto": found
    modes: dict[str, str] = {}
    make = spark_session._start_gateway

    def start(*arguments: Any, **named: Any) -> None:
        make(*arguments, **named)
        modes.update({file.name: oct(file.stat().st_mode & 0o777) for file in arguments[3].iterdir()})

    spark_session._start_gateway = start
    spark: Any = start_spark("local[1]", named_values(given, "--conf"))
    jvm = spark._jvm
    pid = jvm.java.lang.ProcessHandle.current().pid()
    property_of = jvm.java.lang.System.getProperty
    visible = {
        "command": Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0"),
        "conf": dict(spark.sparkContext.getConf().getAll()),
        "my.secret": property_of("my.secret"),
        "heap": jvm.java.lang.Runtime.getRuntime().maxMemory() >> 20,
        "left": sorted(modes),
        "variables": "PYSPARK_SUBMIT_ARGS" in os.environ,
        "count": spark.sparkContext._jsc.parallelize(jvm.java.util.Collections.nCopies(100, 7)).count(),
    }
    print(json.dumps(visible), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
