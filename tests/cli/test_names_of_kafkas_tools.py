"""A person who knows Kafka's tools writes their options: they work here, or the error says what to write."""

from __future__ import annotations

import pytest

from odradek.cli.main import run
from odradek.client import Admin

Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("line", "form"),
    [
        ("groups --describe --group g", "no such option --describe: it is a command here: odradek groups describe"),
        ("groups --reset-offsets --group g", "no such option --reset-offsets: here, odradek groups reset"),
        ("topics --create --topic t", "no such option --create: it is a command here: odradek topics create"),
        ("topics --list", "no such option --list: it is a command here: odradek topics list"),
        ("consume t --property print.key=true", "--property: here, --json prints keys"),
        ("consume t --partition 0", "--partition: here, TOPIC:0,1 names partitions"),
        ("consume t --timeout-ms 5", "--timeout-ms: here, without --follow"),
        ("produce t --broker-list h:1", "--broker-list: here, -b HOST:PORT"),
        ("topics list --topic t", "--topic: here, odradek topics describe TOPIC"),
        ("groups describe --group g --describe", "the command is odradek groups describe already: omit --describe"),
        ("topics list --list", "the command is odradek topics list already: omit --list"),
        ("serve --port 9092", "no such option --port: here, --listen HOST:PORT"),
        ("monitor --port=8000", "no such option --port: here, --listen HOST:PORT"),
        ("topics delete-records t --before-offset 3", "no such option --before-offset (did you mean --before?)"),
        ("topics create t --replicas 1", "no such option --replicas: here, --replication-factor N"),
        ("topics create t --partition 3", "no such option --partition (did you mean --partitions?)"),
        ("topics describe t --zzz", "no such option --zzz (see odradek topics describe --help)"),
        ("groups reset g --to 3", ": one of --to-earliest, --to-latest, --to-current, --to-offset, --to-datetime"),
        ("groups reset g --to-end", "--to-end: here, --to-latest"),
        ("pipeline ingest --format delta", "--format: one of --table-format, --value-format"),
        ("pipeline ingest t --group g --output o -b h:1", "unexpected argument t: is it a topic? Here, --topics t"),
        ("consume t -c 3", "no such option -c: here, --max-records N"),
        ("produce t --value x", "--value: here, lines of standard input or --file"),
        ("groups lag billing", "no such command 'lag': here, odradek groups describe GROUP"),
        ("lag billing", "no such command 'lag': here, odradek groups describe GROUP"),
        ("version", "no such command 'version': here, odradek --version"),
        ("groups reset g --to-timestamp 5", "--to-timestamp: here, --to-datetime TIME"),
        ("groups reset g --undo", "--undo: here, the line Undo of a reset, with --from-file FILE"),
        ("groups reset g --output plan.csv", "--output: here, --export prints the plan: --export > FILE"),
        ("offsets export", "no such command 'export': here, odradek groups reset --all-groups --all-topics"),
        ("offsets import", "no such command 'import': here, odradek groups reset --from-file FILE"),
        ("cluster start", "no such command 'start': here, odradek serve --brokers 3"),
        ("cluster stop", "no such command 'stop': here, Ctrl-C, or SIGTERM to the process of odradek serve"),
        ("cluster random-uuid", "here, odradek cluster format without --cluster-id"),
        ("cluster format -t x", "no such option -t: here, --cluster-id ID"),
        ("cluster format -c x", "no such option -c: here, --config FILE"),
        ("cluster format -d x", "no such option -d: here, --data-dir DIR"),
        ("users create alice", "no such command 'users': here, --add-scram FILE of odradek serve"),
        ("log dump x.log", "no such command 'dump': here, kafka-dump-log.sh of Apache Kafka"),
        ("transactions list --state Ongoing", "--state: here, the column TransactionState"),
        ("zookeeper list", "no such command 'list': here, odradek zookeeper groups"),
        ("pipeline run x.yaml", "no such command 'run': here, odradek pipeline ingest, transform or replay"),
        ("transactions list help -b h:1", "unexpected argument help: here, --help"),
        ("topics list help -b h:1", "unexpected argument help: here, --help"),
        ("pipeline replay t --to-topic u -b h:1", "unexpected argument t: is it a topic? Here, --topics t"),
        ("pipeline ingest --once", "no such option --once: here, --available-now"),
        ("groups list --timeout 5s -b h:1", "--timeout '5s': expected a whole number without a unit (5s is 5000)"),
        ("groups describe g --interval 2min -b h:1", "expected a whole number without a unit (2min is 120)"),
        ("log check tests", "missing option --data-dir: is tests meant? Here, --data-dir tests"),
        ("groups describe --bootstrap-servers h:1", "--bootstrap-servers (did you mean --bootstrap-server?)"),
    ],
)
def test_an_option_of_kafkas_tools_gets_its_form_here(line: str, form: str, capsys: Capture) -> None:
    assert run(line.split()) == 2
    error = capsys.readouterr().err
    assert form in error
    assert error.count("\n") == 1


def test_topics_and_groups_are_given_as_options(bootstrap: str, admin: Admin, topic: str, capsys: Capture) -> None:
    address = ["--bootstrap-server", bootstrap]
    assert run(["topics", "create", "--topic", topic, "--partitions", "3", *address]) == 0
    assert run(["topics", "describe", "--topic", topic, *address]) == 0
    assert topic in capsys.readouterr().out
    assert len(admin.partitions(topic)) == 3
    assert run(["groups", "locate", "--group", "billing", *address]) == 0
    assert "billing" in capsys.readouterr().out
    assert run(["topics", "delete", "--topic", topic, "--yes", *address]) == 0
    for line in (["topics", "create"], ["groups", "locate"], ["groups", "locate", "a", "--group", "b"]):
        assert run([*line, *address]) == 2
        assert capsys.readouterr().err.count("\n") == 1
