"""Mistakes in ``odradek pipeline`` commands give one line and an exit code. Ctrl-C works at any time."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from ingest_runs import committed, ends, expected, parquet, record_ids
from support.brokers import eventually, unique
from support.processes import descendants
from support.publish import commit, create_topic, numbers, publish

from odradek.cli.main import run
from odradek.cli.termination import Terminated, terminable
from odradek.client.admin import Admin
from odradek.pipelines.formats.target import Target
from odradek.pipelines.tables.table import Table

Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def topic(bootstrap: str) -> str:
    name = unique("stranger")
    create_topic(bootstrap, name, 2)
    publish(bootstrap, name, numbers(10))
    return name


def _refused(capsys: Captured, arguments: Sequence[str], *says: str) -> int:
    code = run(["pipeline", *arguments])
    captured = capsys.readouterr()
    assert captured.err.startswith("odradek: "), captured
    assert captured.err.count("\n") == 1, captured
    for part in says:
        assert part in captured.err
    return code


def test_mistakes_are_reported_in_one_line_before_spark_is_started(
    bootstrap: str, topic: str, tmp_path: Path, capsys: Captured
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "other" / "offsets").mkdir(parents=True)
    (tmp_path / "bad.avsc").write_text("{")
    given = {"--topics": topic, "--group": "g", "--output": str(tmp_path / "t"), "-b": bootstrap}

    def ingest(*says: str, **changed: str) -> int:
        options = given | {f"--{name.replace('_', '-')}".replace("--b", "-b"): text for name, text in changed.items()}
        return _refused(capsys, ["ingest", *(part for pair in options.items() for part in pair)], *says)

    both = "--topics and --subscribe-pattern both say what to read: leave one out\n"
    assert ingest(both, subscribe_pattern="t.*") == 2
    neither = [part for pair in given.items() if pair[0] != "--topics" for part in pair]
    assert _refused(capsys, ["ingest", *neither], "say what to read: give --topics or --subscribe-pattern\n") == 2
    assert ingest("did you mean", topic, topics=topic + "x") == 2
    assert ingest("cannot reach 127.0.0.1:1", b="127.0.0.1:1") == 1
    assert ingest("expected HOST:PORT", b="nowhere") == 2
    assert ingest("choose one of raw, json, avro", value_format="xml") == 2
    in_transactions = "Leave the option out; `odradek pipeline transform` writes a topic in transactions"
    assert ingest("commitOffsets=transaction: ", in_transactions, option="commitoffsets=Transaction") == 2
    assert ingest("choose one of parquet, delta", table_format="orc") == 2
    assert ingest(str(tmp_path / "file"), "cannot be used", output=str(tmp_path / "file")) == 2
    assert ingest("belongs to another query", "--checkpoint of its own", checkpoint=str(tmp_path / "other")) == 2
    assert ingest("is not a valid Avro schema", value_format="avro", schema=str(tmp_path / "bad.avsc")) == 2
    assert ingest("user.avsc does not exist", value_format="avro", schema="user.avsc") == 2
    assert ingest("expected an interval", trigger="often") == 2
    assert ingest("did you mean maxOffsetsPerTrigger", option="maxOfsetsPerTrigger=1") == 2
    assert ingest("expected NAME=VALUE", conf="x") == 2
    assert ingest("choose one of auto, json, none", progress="bar") == 2
    assert ingest("expected ID=FILE", writer_schema="x=y") == 2
    assert ingest("--writer-schema 'x.avsc': expected ID=FILE\n", writer_schema="x.avsc") == 2
    assert not (tmp_path / "t" / "_odradek" / "batches").exists()


def test_mistakes_of_a_replay_are_reported_in_one_line(
    bootstrap: str, topic: str, tmp_path: Path, capsys: Captured
) -> None:
    def replay(says: str, *arguments: str) -> int:
        return _refused(capsys, ["replay", "-b", bootstrap, *arguments], says)

    assert replay("choose the destination", "--topics", topic) == 2
    nothing = ("--topics", topic, "--output", str(tmp_path / "again"), "--from", "10")  # Spark would not start
    assert replay("master 'nonsense': expected local[N]", *nothing, "--master", "nonsense") == 2
    assert replay("master 'local[x]': expected local[N]", *nothing, "--conf", "spark.master=local[x]") == 2
    assert replay("say what to read: give --topics, --offsets or --read-by\n", "--dry-run") == 2
    says = "choose one way to say what to read: --offsets, --from and --to, or --read-by\n"
    assert replay(says, "--topics", topic, "--from", "5", "--read-by", "g", "--dry-run") == 2
    says = "--offsets contains the names of the topics: omit --topics\n"
    assert replay(says, "--topics", topic, "--offsets", f'{{"{topic}":{{"0":[1,2]}}}}', "--dry-run") == 2
    assert replay("--to 'soon' is neither earliest", "--topics", topic, "--to", "soon", "--dry-run") == 2
    assert replay("--since 'then' is not a time", "--read-by", "g", "--since", "then", "--dry-run") == 2
    says = "--since 2026-01-02 is after --until 2026-01-01: exchange them\n"
    assert replay(says, "--read-by", "g", "--since", "2026-01-02", "--until", "2026-01-01", "--dry-run") == 2
    assert replay("either --output", "--topics", topic, "--output", str(tmp_path), "--to-topic", topic) == 2
    for text, why in (("x", ""), ('{"t":{"0":[1]}}', ""), ('{"t":{"0":[2,1]}}', " ([2,1] is not a range)")):
        says = f'offsets {text!r}: expected for example {{"events":{{"0":[100,200]}}}}{why}\n'
        assert replay(says, "--offsets", text, "--dry-run") == 2
    assert replay("offsets 10 to 11 do not exist", "--offsets", f'{{"{topic}":{{"0":[5,12]}}}}', "--dry-run") == 1
    unknown = unique("unknown")
    assert replay(f"group {unknown} not found", "--read-by", unknown, "--dry-run") == 2
    assert replay("--from 10 is after --to 9", "--topics", topic, "--from", "10", "--to", "9", "--dry-run") == 2
    into = ["--topics", topic, "--to-topic", topic]
    assert replay("did you mean kafka.compression.type", *into, "--producer-option", "compresion.type=lz4") == 2
    assert replay("one of none, gzip", *into, "--producer-option", "compression.type=lz5") == 2
    assert (
        replay("--producer-option is for --to-topic", "--topics", topic, "--dry-run", "--producer-option", "a=b") == 2
    )
    assert replay("are for --to-topic", "--topics", topic, "--keep-partitions", "--output", str(tmp_path)) == 2


def test_a_dry_run_shows_ranges(bootstrap: str, topic: str, capsys: Captured) -> None:
    assert run(["pipeline", "replay", "-b", bootstrap, "--topics", topic, "--from", "4", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert [line.split() for line in shown.splitlines()[:2]] == [
        ["TOPIC", "PARTITION", "FROM", "TO", "RECORDS"],
        [topic, "0", "4", "10", "6"],
    ]
    assert run(["pipeline", "replay", "-b", bootstrap, "--topics", topic, "--from", "4", "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "offsets": 6,
        "ranges": [{"topic": topic, "partition": 0, "from": 4, "to": 10}],
        "missing": [],
    }


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_may_not_be_written_is_refused(
    bootstrap: str, topic: str, tmp_path: Path, capsys: Captured
) -> None:
    tmp_path.chmod(0o500)
    arguments = ["ingest", "--topics", topic, "--group", "g", "--output", str(tmp_path / "t"), "-b", bootstrap]
    assert _refused(capsys, arguments, "cannot be used") == 2
    tmp_path.chmod(0o700)


def test_the_help_has_examples(capsys: Captured) -> None:
    for command in ("ingest", "replay"):
        assert run(["pipeline", command, "--help"]) == 0
        assert f"odradek pipeline {command} --" in capsys.readouterr().out


ENDS = {
    signal.SIGINT: (130, "odradek: interrupted: finished micro-batches stay, and the next run goes on\n"),
    signal.SIGTERM: (143, "odradek: stopped by SIGTERM\n"),
    signal.SIGHUP: (129, "odradek: stopped by SIGHUP\n"),
}
PATIENCE = "odradek: the current micro-batch has 3 s to end; Ctrl-C again stops at once\n"


def signal_all(process: subprocess.Popen[str], sent: signal.Signals, to: str) -> None:
    """Sends a signal to the driver, to its process group (as ``timeout`` does), or to all its processes (systemd)."""
    if to == "driver":
        process.send_signal(sent)
    elif to == "group":
        os.killpg(process.pid, sent)
    else:
        for pid in [*descendants(process.pid), process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, sent)


@pytest.mark.slow
@pytest.mark.parametrize("to", ["driver", "group", "all"])
@pytest.mark.parametrize(
    ("sent", "code", "says"),
    [
        (signal.SIGINT, 0, PATIENCE),
        (signal.SIGTERM, 143, "odradek: stopped cleanly by SIGTERM\n"),
        (signal.SIGHUP, 129, "odradek: stopped cleanly by SIGHUP\n"),
    ],
    ids=["ctrl-c", "sigterm", "sighup"],
)
def test_a_continuous_run_is_stopped_cleanly(
    sent: signal.Signals, code: int, says: str, to: str, bootstrap: str, tmp_path: Path, admin: Admin
) -> None:
    """The group is committed up to the end of the last micro-batch when the run has ended."""
    topic, group, output = unique("goes-on"), unique("group"), tmp_path / "t"
    create_topic(bootstrap, topic, 2)
    publish(bootstrap, topic, numbers(10))
    line = [sys.executable, "-m", "odradek.cli.main", "pipeline", "ingest", "-b", bootstrap, "--topics", topic]
    line += ["--group", group, "--output", str(output), "--trigger", "200ms", "--master", "local[1]", "--json"]
    pipe = subprocess.PIPE
    process = subprocess.Popen(line, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
    assert process.stdout is not None
    assert json.loads(process.stdout.readline()) == {"rows": 10, "bad": 0}
    publish(bootstrap, topic, numbers(3), partition=1)
    assert json.loads(process.stdout.readline())["rows"] > 0
    eventually(lambda: record_ids(parquet(output)) == expected(admin, topic), within_s=60, what="all rows")
    signal_all(process, sent, to)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (code, says)
    summary = json.loads(out.splitlines()[-1])
    assert (summary["rows"], summary["bad"], summary["output"]) == (13, 0, str(output))
    assert summary["committed"] is True
    assert committed(admin, group) == ends(admin, topic)
    assert [path.name[:7] for path in (output / "_odradek" / "runs").iterdir()] == ["number-"]


@pytest.mark.slow
@pytest.mark.parametrize("writer", ["workers", "spark"])
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGHUP])
def test_a_finite_run_whose_processes_get_a_signal_says_one_line(
    sent: signal.Signals, writer: str, bootstrap: str, tmp_path: Path, admin: Admin
) -> None:
    """The signal arrives while the micro-batch is written. The next run completes the table."""
    topic, group, output = unique("signalled"), unique("group"), tmp_path / "t"
    create_topic(bootstrap, topic, 2)
    publish(bootstrap, topic, [b"x" * 500] * 2000)
    line = [sys.executable, "-m", "odradek.cli.main", "pipeline", "ingest", "-b", bootstrap, "--topics", topic]
    line += ["--group", group, "--output", str(output), "--master", "local[1]", "--writer", writer]
    line += ["--max-offsets", "100"]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    eventually(lambda: any(output.rglob("*.parquet")), within_s=120, what="the first file")
    signal_all(process, sent, "group")
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out, err) == (ENDS[sent][0], "", ENDS[sent][1])
    assert run(line[3:]) == 0
    assert record_ids(parquet(output)) == expected(admin, topic)
    assert committed(admin, group) == ends(admin, topic)


@pytest.mark.parametrize(
    ("command", "sent"),
    [pytest.param("ingest", signal.SIGINT, marks=pytest.mark.slow), ("replay", signal.SIGTERM)],  # each starts a Java
)
def test_a_finite_run_is_stopped_at_once(
    command: str, sent: signal.Signals, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    """The run's record in ``_odradek/runs`` shows no living run, because other machines cannot check the process: it is
    marked as ended, or removed if the signal found the run before its first or behind its last file."""
    output = tmp_path / "t"
    line = [sys.executable, "-m", "odradek.cli.main", "pipeline", command, "-b", bootstrap, "--topics", topic]
    line += ["--output", str(output), "--master", "local[1]"]
    line += ["--group", unique("group")] if command == "ingest" else []
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    runs = output / "_odradek" / "runs"
    eventually(lambda: any(runs.glob("*.json")), within_s=60, what="the run's record")
    process.send_signal(sent)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == ENDS[sent]
    assert command == "replay" or out == ""
    left = [json.loads(path.read_text()) for path in runs.glob("*.json")]
    assert [(record["holds"], record["process"]) for record in left] in ([], [(False, "")])
    Table(Target(str(output)), None).close()


@pytest.mark.slow
def test_history_is_stopped_by_sigterm(bootstrap: str, topic: str, group: str, tmp_path: Path) -> None:
    commit(bootstrap, group, {(topic, 0): 1})
    output = tmp_path / "tables"
    line = [sys.executable, "-m", "odradek.cli.main", "pipeline", "history", "-b", bootstrap, "--output", str(output)]
    process = subprocess.Popen([*line, "--master", "local[1]"], stderr=subprocess.PIPE, text=True)
    eventually(output.exists, within_s=60, what="the folder, which is created after Spark's start")
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=120)
    assert (process.returncode, err) == ENDS[signal.SIGTERM]
    assert run(line[3:]) == 0
    assert {path.suffix for path in output.iterdir() if not path.name.startswith(".")} == {".parquet"}


def test_sigterm_is_handled_only_within_a_command() -> None:
    def wait_for_it() -> None:
        with terminable():
            os.kill(os.getpid(), signal.SIGTERM)
            threading.Event().wait(10)

    with pytest.raises(Terminated):
        wait_for_it()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
