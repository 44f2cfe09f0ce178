"""A driver whose tasks are disturbed by ``disturbance/sitecustomize.py``. Argument: a JSON object.

``master``, ``disturb`` (the value of ODRADEK_DISTURB), ``job``: ``ingest`` with its keywords in ``given``, or ``sink``,
which writes the numbers below ``rows`` to the topic ``to_topic``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from odradek.pipelines import ingest
from odradek.spark import register
from odradek.spark.session import session

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.minTaskRuntime": "1s",
    "spark.speculation.interval": "200ms",
    "spark.speculation.quantile": "0.5",
}


def main(job: dict[str, Any]) -> None:
    config = {
        "spark.executor.memory": "512m",
        "spark.driver.host": "127.0.0.1",
        "spark.executorEnv.PYTHONPATH": str(Path(__file__).with_name("disturbance")),
        "spark.executorEnv.ODRADEK_DISTURB": job["disturb"],
        "spark.sql.execution.arrow.maxRecordsPerBatch": "10",
    }
    spark = session("disturbed", job["master"], config | (SPECULATION if ",slow," in job["disturb"] else {}))
    if job["job"] == "ingest":
        done = ingest(job["bootstrap"], **job["given"], spark=spark)
        print(json.dumps({"rows": done.rows, "committed": done.group.is_committed}), flush=True)
        return
    register(spark)
    frame = spark.range(job["rows"], numPartitions=2).selectExpr("CAST(id AS string) AS value")
    writer = frame.write.format("odradek").option("kafka.bootstrap.servers", job["bootstrap"])
    writer.option("topic", job["to_topic"]).mode("append").save()
    print(json.dumps({"rows": job["rows"]}), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
