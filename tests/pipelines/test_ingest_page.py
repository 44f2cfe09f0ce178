"""docs/pipelines.md: its commands and its Python run unchanged, except for the broker's address. Ingest and the history
also run on a cluster."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from ingest_runs import committed, ends, expected, parquet, record_ids
from support.brokers import unique
from support.publish import create_topic, publish
from support.spark_cluster import standalone
from transaction_runs import committed_records

from odradek.cli.main import run
from odradek.client.admin import Admin
from odradek.core.ids import OffsetAndMetadata, TopicPartition
from odradek.history.analysis import analyse_offset_history

PAGE = Path(__file__).resolve().parents[2] / "docs" / "pipelines.md"


def test_the_page_runs_in_order(
    spark: object, admin: Admin, bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commands run in this process, with the arguments that a shell would pass, so that Spark starts only once."""
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```(python|sh)\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert {kind for kind, _ in blocks} == {"python", "sh"}
    topics = ("events", "events-again", "small-events", "dead-letters")
    for name in topics:
        create_topic(bootstrap, name, 2)
    for partition in (0, 1):
        values = [b'{"id":%d,"name":"x"}' % n for n in range(500)]
        publish(bootstrap, "events", values, partition=partition)
    names: dict[str, object] = {}
    try:
        for kind, block in blocks:
            code = block.replace("127.0.0.1:9092", bootstrap)
            if kind == "python":
                exec(compile(code, str(PAGE), "exec"), names)
                continue
            if "--to-topic dead-letters" in code:
                publish(bootstrap, "events", [b"no JSON", b'{"id":1}'], partition=1)
            for line in code.replace("\\\n", " ").splitlines():
                program, *arguments = shlex.split(line)
                assert (program, run(arguments)) == ("odradek", 0), line
        assert len(committed_records(bootstrap, "events-again")) == 1000 + 200
        assert parquet(tmp_path / "lake" / "again").num_rows == 10
        assert len(committed_records(bootstrap, "small-events")) == 200
        (letter,) = committed_records(bootstrap, "dead-letters")
        assert (letter.value, letter.headers) == (b"no JSON", (("error", b"it is not one JSON object"),))
    finally:
        admin.delete_topics(topics)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """A standalone cluster as on the page: a master and two workers, each a process. Returns its address."""
    with standalone(tmp_path, [True, True]) as running:
        yield running.address


@pytest.mark.slow
def test_ingest_runs_on_a_standalone_cluster_of_two_workers(
    cluster: str, admin: Admin, bootstrap: str, tmp_path: Path
) -> None:
    """Ingest is started from the command line and with spark-submit. Executors run in the workers' processes, one core
    each."""

    topic, group = unique("cluster"), unique("group")
    create_topic(bootstrap, topic, 4)
    for partition in range(4):
        publish(bootstrap, topic, [b"%d" % n for n in range(250)], partition=partition)
    output = tmp_path / "table"
    line = [sys.executable, "-m", "odradek.cli.main", "pipeline", "ingest", "-b", bootstrap, "--topics", topic]
    line += ["--group", group, "--output", str(output), "--master", cluster, "--value-format", "json"]
    line += ["--conf", "spark.executor.memory=512m", "--conf", "spark.driver.host=127.0.0.1"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=400, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done
    assert record_ids(parquet(output)) == expected(admin, topic)
    assert {path.parent.parent.name for path in tmp_path.glob("w?/app-*/*/stdout")} != set()
    assert len({path.relative_to(tmp_path).parts[0] for path in tmp_path.glob("w?/app-*/*/stderr")}) == 2, (
        "both workers had tasks"
    )

    publish(bootstrap, topic, [b"more"] * 10, partition=2)
    job = tmp_path / "job.py"
    job.write_text(
        "from odradek.pipelines import ingest\n"
        f"ingest({bootstrap!r}, topics={topic!r}, group={group!r}, output={str(output)!r}, value_format='json')\n"
    )
    submit(cluster, job)
    assert record_ids(parquet(output)) == expected(admin, topic)
    assert committed(admin, group) == ends(admin, topic)


def submit(master: str, job: Path) -> None:
    import pyspark

    home = Path(pyspark.__file__).parent
    line = [str(home / "bin" / "spark-submit"), "--master", master, "--conf", "spark.executor.memory=512m", str(job)]
    environment = os.environ | {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1"}
    environment |= {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    done = subprocess.run(line, capture_output=True, text=True, timeout=400, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]


HISTORY = """\
from odradek.pipelines import report_history

found = report_history({bootstrap!r}, group={group!r}, output={output!r}, report={page!r})
assert [row["kind"] for row in found.findings.to_pylist()] == ["rewind"]
"""


@pytest.mark.slow
def test_the_history_of_groups_on_a_cluster_equals_that_on_one_machine(
    cluster: str, admin: Admin, bootstrap: str, tmp_path: Path
) -> None:
    """The history runs on a standalone cluster, from the command line and with spark-submit, and on a
    ``local-cluster``."""
    topic, group = unique("cluster"), unique("group")
    create_topic(bootstrap, topic, 1)
    publish(bootstrap, topic, [b"x"] * 100)
    for offset in (70, 20):
        admin.alter_group_offsets(group, {TopicPartition(topic, 0): OffsetAndMetadata(offset)})
    here = analyse_offset_history(bootstrap, group=group).findings.to_pylist()

    def check(kind: str) -> None:
        output, page = tmp_path / kind, tmp_path / f"{kind}.html"
        assert pq.read_table(output / "findings.parquet").to_pylist() == here
        assert pq.read_table(output / "commits.parquet")["committed_offset"].to_pylist() == [70, 20]
        assert "from 70 back to 20" in page.read_text()

    line = [sys.executable, "-m", "odradek.cli.main", "pipeline", "history", "-b", bootstrap, "--group", group]
    line += ["--conf", "spark.executor.memory=512m", "--conf", "spark.driver.host=127.0.0.1"]
    for kind, master in (("standalone", cluster), ("together", "local-cluster[2,1,1024]")):
        more = ["--master", master, "--output", str(tmp_path / kind), "--report", str(tmp_path / f"{kind}.html")]
        done = subprocess.run([*line, *more], capture_output=True, text=True, timeout=400, check=False)
        assert (done.returncode, done.stderr) == (0, ""), done
        check(kind)
    job = tmp_path / "job.py"
    output, page = str(tmp_path / "submitted"), str(tmp_path / "submitted.html")
    job.write_text(HISTORY.format(bootstrap=bootstrap, group=group, output=output, page=page))
    submit(cluster, job)
    check("submitted")
