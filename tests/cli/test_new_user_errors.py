"""Errors that a person meets who knows Kafka's tools but not these: each names the thing and what has its place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import odradek
from odradek.cli.broker.data_directory import check_unused_data_dir
from odradek.cli.main import run
from odradek.cli.terminal import CommandError

NOWHERE = "127.0.0.1:1"
MAKE = ": make it, or give another path"


def line_of(capsys: pytest.CaptureFixture[str], *words: str, code: int = 2) -> str:
    """Runs a command that fails. Returns its only line on stderr."""
    assert run(list(words)) == code
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1, lines
    return lines[0].removeprefix("odradek: ")


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("groups reset-offsets --group g", "no such command 'reset-offsets': here, odradek groups reset GROUP"),
        ("consumer-groups --list", "no such command 'consumer-groups': here, odradek groups"),
        ("topic list", "no such command 'topic': did you mean topics? (see odradek --help)"),
        ("topics lsit", "no such command 'lsit': did you mean 'list'? (see odradek topics --help)"),
        ("groups export", "here, odradek groups reset --all-groups --all-topics --to-current --export"),
        ("groups copy a b", "here, odradek groups reset GROUP --all-topics --to-current --export"),
        ("acls --list", "here, kafka-acls.sh of Apache Kafka"),
        ("ingest", "here, odradek pipeline ingest"),
        ("topics --list", "no such option --list: it is a command here: odradek topics list"),
        ("produce t --property parse.key=true", 'here, --format json, one {"key": …, "value": …} a line'),
        ("consume t --print-key", "here, --json prints keys"),
        ("produce t --compression-codec gzip", "here, --command-config FILE with compression.type=gzip"),
        ("consume t --consumer-property a=b", "here, --command-config FILE has settings"),
        ("transactions abort --transactional-id x", "here, odradek transactions force-terminate --transactional-id ID"),
        ("transactions abort ckt -b x", "is ended by odradek transactions force-terminate --transactional-id ckt"),
        ("zookeeper groups -b x", "here, -z HOST:PORT alone: it lists what ZooKeeper has"),
        ("groups state", "missing argument 'GROUP', '--group' or '--all-groups': odradek groups list shows the groups"),
    ],
)
def test_a_word_of_another_tool_names_the_one_here(capsys: pytest.CaptureFixture[str], line: str, text: str) -> None:
    words = line.split()
    if words[:2] == ["groups", "state"]:
        words += ["-b", NOWHERE]
    assert text in line_of(capsys, *words)


def test_an_option_is_not_taken_for_the_name_of_an_argument(capsys: pytest.CaptureFixture[str]) -> None:
    text = line_of(capsys, "log", "check", "--data-dir", "x", "--partitions", "1")
    assert "did you mean partitions" not in text
    assert "--partitions" in text


def test_a_folder_that_is_no_data_directory_names_the_option(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"")
    for command in (("metadata", "check"), ("log", "check")):
        text = line_of(capsys, *command, "--data-dir", str(file))
        assert text == f"--data-dir {file} is not a folder: give the folder that --data-dir of `odradek serve` names"
        text = line_of(capsys, *command, "--data-dir", str(tmp_path / "absent"))
        assert text.startswith(f"--data-dir {tmp_path / 'absent'} does not exist: give the folder")


def test_a_file_that_cannot_be_read_has_a_remedy(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for path, end in (
        (tmp_path, "Is a directory: give a file"),
        (tmp_path / "no", "give the path of a file that exists"),
    ):
        text = line_of(capsys, "topics", "list", "-b", NOWHERE, "--command-config", str(path))
        assert text.startswith(f"--command-config {path}: ")
        assert text.endswith(end)


def test_a_table_that_does_not_exist_is_named_before_spark(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    absent = tmp_path / "lake"
    text = line_of(capsys, "pipeline", "adopt", "-b", NOWHERE, "--group", "g", "--output", str(absent))
    assert text == f"--output {absent} does not exist: give the folder of the table that `ingest` has written"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (
            ("--from", "-2h"),
            r"--from '-2h': a span moves with each run, .* give the time, for example 20\d\d-\d\d-\d\dT",
        ),
        (("--to", "30min"), r"--to '30min': a span moves with each run"),
        (("--since", "2026-01-31T12:00"), r"--since is a time of a group's commits: add --read-by GROUP"),
    ],
)
def test_a_replay_has_fixed_bounds(capsys: pytest.CaptureFixture[str], words: tuple[str, ...], text: str) -> None:
    found = line_of(capsys, "pipeline", "replay", "-b", NOWHERE, "--topics", "t", "--dry-run", *words)
    assert re.match(text, found)


@pytest.mark.parametrize("time", ["2 hours ago", "-2h", "yesterday"])
def test_a_span_in_place_of_a_time_names_the_option_for_spans(capsys: pytest.CaptureFixture[str], time: str) -> None:
    words = ("groups", "reset", "g", "--topic", "t", "--to-datetime", time, "--dry-run", "-b", NOWHERE)
    assert line_of(capsys, *words).endswith("; a span before now is --by-duration 2h")


def test_the_start_of_a_broker_says_which_number_a_span_is(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ("serve", "--data-dir", str(tmp_path / "d"), "--listen", "127.0.0.1:0", "--config")
    assert line_of(capsys, *words, "log.retention.ms=7d").endswith("Not a number of type LONG (7d is 604800000)")


def test_the_commands_with_one_form_offer_no_installation_of_completion(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("produce", "consume", "monitor", "top"):
        assert run([command, "--help"]) == 0
        assert "completion" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("consume t -b x --from=", "--from is empty: give earliest|latest|OFFSET|-N|-SPAN|TIME"),
        ("metadata strays --data-dir x --as=", "--as is empty: give NAME"),
        ("pipeline ingest --topics t --group g --output o -b x --checkpoint=", "--checkpoint is empty: give DIR|URI"),
        ("cluster format --data-dir x --node-id 1 --cluster-id=", "--cluster-id is empty: give ID"),
        ("topics alter t -b x --delete-config=", "--delete-config is empty: give NAME"),
        ("top --once -b x --interval=", "--interval is empty: give SPAN"),
        ("groups list -b x --timeout 99999999999999999999", "expected a whole number of at most 2147483647 (see"),
        ("offsets dump -b x --max 99999999999999999999", "expected a whole number of at most 9223372036854775807 (see"),
        ("produce t -b x --file /dev/null --key k", "the input is lines: omit it, or add --format csv"),
        ("produce t -b x --file /dev/null --delimiter ;", "the input is lines: omit it, or add --format csv"),
        ("groups list -b x --timeout 3000000000", "expected a number of at most 2147483647"),
        ("groups locate a --group b -b x", "GROUP a and --group b: give one group, as an argument or with --group"),
        ("groups delete-offsets --topic t -b x", "missing argument 'GROUP' or option '--group': odradek groups list"),
        ("zookeeper groups -z http://127.0.0.1:2181", "expected HOST:PORT without http://"),
        ("pipeline replay --topics t --dry-run -b x:1 --from 5 --to 2", "--from 5 is after --to 2: give the smaller"),
        ("groups locate -b x", "missing argument 'GROUP': give one group, as an argument or with --group"),
        ("zookeeper groups -z \ufeffx", "'\\ufeffx' is not HOST:PORT"),
    ],
)
def test_an_empty_or_a_huge_value_is_refused(capsys: pytest.CaptureFixture[str], line: str, text: str) -> None:
    assert text in line_of(capsys, *line.split())


class TestWithACluster:
    """Errors about what a cluster has."""

    @pytest.fixture(scope="class")
    def bootstrap(self) -> object:
        with odradek.Broker() as broker:
            with odradek.Producer(broker.bootstrap_servers) as producer:
                producer.send("orders", b"1").result()
            with odradek.Admin(broker.bootstrap_servers) as admin:
                admin.alter_group_offsets("billing", {odradek.TopicPartition("orders", 0): 1})
            yield broker.bootstrap_servers

    def test_a_span_for_a_number_of_milliseconds(self, capsys: pytest.CaptureFixture[str], bootstrap: str) -> None:
        words = ("topics", "alter", "orders", "--config", "retention.ms=7d", "-b", bootstrap)
        assert line_of(capsys, *words).endswith("Not a number of type LONG (7d is 604800000)")

    def test_an_unknown_group(self, capsys: pytest.CaptureFixture[str], bootstrap: str) -> None:
        text = line_of(capsys, "groups", "describe", "nothing", "-b", bootstrap)
        assert text == "GROUP_ID_NOT_FOUND: group nothing not found: the cluster has billing"
        text = line_of(capsys, "groups", "describe", "biling", "-b", bootstrap)
        assert text.endswith("(did you mean billing?)")
        text = line_of(capsys, "offsets", "dump", "--group", "nothing", "-b", bootstrap)
        assert text.endswith("has no record of group 'nothing': the cluster has billing")

    def test_a_setting_that_no_topic_has(self, capsys: pytest.CaptureFixture[str], bootstrap: str) -> None:
        words = ("topics", "alter", "orders", "-b", bootstrap, "--delete-config")
        text = line_of(capsys, *words, "retention.m")
        assert text == "--delete-config retention.m: a topic has no such setting (did you mean retention.ms?)"
        assert line_of(capsys, *words, "zzz").endswith(": odradek topics describe orders --all-configs lists them")
        assert run([*words, "retention.ms"]) == 0
        capsys.readouterr()

    def test_a_broker_that_the_cluster_does_not_have(self, capsys: pytest.CaptureFixture[str], bootstrap: str) -> None:
        for command in (("find-hanging",), ("describe-producers", "--partition", "0")):
            words = ("transactions", *command, "--topic", "orders", "--broker-id", "99", "-b", bootstrap)
            assert line_of(capsys, *words) == "--broker-id 99: the cluster has broker 1"

    def test_a_partition_in_place_of_a_topic(self, capsys: pytest.CaptureFixture[str], bootstrap: str) -> None:
        text = line_of(capsys, "topics", "delete", "orders:7", "--yes", "-b", bootstrap)
        assert text.startswith("INVALID_TOPIC_EXCEPTION: topic orders:7: a name has only the letters a-z")

    def test_replicas(self, capsys: pytest.CaptureFixture[str], bootstrap: str) -> None:
        words = ("topics", "create", "t", "--replication-factor", "3", "-b", bootstrap)
        assert line_of(capsys, *words).startswith("INVALID_REPLICATION_FACTOR: topic t: ")

    def test_an_open_transaction_is_named(self, capsys: pytest.CaptureFixture[str], bootstrap: str) -> None:
        with odradek.Producer(bootstrap, transactional_id="till") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("sales", b"1").result()
            assert run(["consume", "sales", "--isolation", "read_committed", "-b", bootstrap]) == 0
            out, err = capsys.readouterr()
            assert out == ""
            assert err == (
                "Warning: records behind an open transaction are left out (sales-0 from 0 on): "
                "`odradek transactions list` names it, and --isolation read_uncommitted shows them\n"
            )
            producer.commit_transaction()
        assert run(["consume", "sales", "--isolation", "read_committed", "-b", bootstrap]) == 0
        assert capsys.readouterr() == ("1\n", "")


def test_a_group_that_does_not_exist_has_no_offsets_to_reset(
    capsys: pytest.CaptureFixture[str], bootstrap: str
) -> None:
    line = ("groups", "reset", "nowhere-to-be-found", "--all-topics", "--to-earliest", "--execute", "-b", bootstrap)
    run(list(line))
    assert capsys.readouterr().err == (
        "odradek: group nowhere-to-be-found does not exist: it has no offsets to reset: odradek groups list shows the"
        " groups\n"
    )


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("groups reset g --topic t --all-topics --to-earliest", "--topic and --all-topics: give one of them"),
        (
            f"groups reset g --topic t --shift-by -{10**22}",
            f"expected a whole number of at least -{2**63} (see odradek groups reset --help)",
        ),
        (f"groups reset g --topic t --to-offset {10**22}", f"expected a whole number of at most {2**63 - 1} (see"),
        ("offsets dump --partition 9", "here, --group GROUP; odradek groups locate GROUP names its partition"),
        ("consume t --headers", "here, --json prints keys, times and headers"),
    ],
)
def test_an_option_says_what_has_its_place(capsys: pytest.CaptureFixture[str], words: str, text: str) -> None:
    assert text in line_of(capsys, *words.split(), "-b", NOWHERE)


@pytest.mark.parametrize("command", ["serve --listen 127.0.0.1:0", "cluster format --node-id 1"])
def test_a_broker_does_not_write_among_the_folders_of_another_program(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str
) -> None:
    """Kafka's broker does not start on a folder with other folders, for example on that of tables."""
    for name in ("lost+found", ".snapshot", "events"):
        (tmp_path / "lake" / name).mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    text = line_of(capsys, *command.split(), "--data-dir", str(tmp_path / "lake"))
    assert text == (
        f"--data-dir {tmp_path / 'lake'} has folders that no broker has made, events for one: give an empty folder, or"
        " a new one"
    )
    assert sorted(tmp_path.rglob("*")) == before


def test_a_new_volume_and_a_used_folder_are_data_directories(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "file").touch()
    check_unused_data_dir(tmp_path)
    (tmp_path / "events").mkdir()
    with pytest.raises(CommandError, match="events for one"):
        check_unused_data_dir(tmp_path)
    (tmp_path / "orders-0").mkdir()
    check_unused_data_dir(tmp_path)  # the broker says which files it misses
    (tmp_path / "orders-0").rmdir()
    (tmp_path / "meta.properties").touch()
    check_unused_data_dir(tmp_path)
    check_unused_data_dir(tmp_path / "new")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("monitor --cluster-name", "--cluster-name: a cluster's name cannot be empty: leave it out for kafka"),
        ("pipeline adopt --group g --output FILE", "--output FILE is a file: give the folder of the table that"),
        (
            "pipeline ingest --topics t --group g --output x --storage-option a=b",
            "is for --table-format delta: choose this format, or leave the option out. Parquet takes",
        ),
        ("pipeline replay --topics t --output x --storage-option a=b", "--storage-option is for --table-format delta"),
    ],
)
def test_an_option_that_would_do_something_else_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, words: str, text: str
) -> None:
    file = tmp_path / "file"
    file.touch()
    given = [word.replace("FILE", str(file)) for word in words.split()]
    given += [""] if given[-1] == "--cluster-name" else []
    assert text.replace("FILE", str(file)) in line_of(capsys, *given, "-b", NOWHERE)


def test_a_table_that_is_no_parquet_says_what_it_is(
    capsys: pytest.CaptureFixture[str], bootstrap: str, tmp_path: Path
) -> None:
    for content, what in (
        (b"", "it is empty, and no Parquet: write the table again"),
        (
            b"a,b\n1,2\n",
            "it is text or another format, not Parquet: give --format lines, json or csv, or a file with Parquet",
        ),
        (b"Obj\x01\x04", "it is Avro, not Parquet: give --format lines, json or csv, or a file with Parquet"),
    ):
        file = tmp_path / "a.parquet"
        file.write_bytes(content)
        assert line_of(capsys, "produce", "t", "--file", str(file), "-b", bootstrap) == f"{file}: {what}"


def test_a_settings_file_that_is_no_text_says_what_it_is(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    for content, what in (
        (b"PAR1\x15\xff", "it is Parquet, not text: give a text file in UTF-8"),
        ("a=é\n".encode("latin-1"), "it is not valid UTF-8: save it as UTF-8, or write é as the escape \\u00e9"),
    ):
        file.write_bytes(content)
        text = line_of(capsys, "topics", "list", "-b", NOWHERE, "--command-config", str(file))
        assert text == f"--command-config {file}: {what}"


def test_an_output_in_a_folder_that_does_not_exist_names_the_folder(
    capsys: pytest.CaptureFixture[str], bootstrap: str, filled: str, tmp_path: Path
) -> None:
    for name in ("records.csv", "records.parquet", "records.json", "records.txt"):
        path = tmp_path / "absent" / name
        text = line_of(capsys, "consume", filled, "--output", str(path), "-b", bootstrap)
        assert text == f"--output {path}: there is no directory {tmp_path / 'absent'}{MAKE}"
    (tmp_path / "file").touch()
    text = line_of(capsys, "consume", filled, "--output", str(tmp_path / "file" / "a.csv"), "-b", bootstrap)
    assert text == f"--output {tmp_path / 'file' / 'a.csv'}: there is no directory {tmp_path / 'file'}{MAKE}"


def test_a_table_with_partitions_that_the_topic_lacks_says_how_to_send_it(
    capsys: pytest.CaptureFixture[str], bootstrap: str, filled: str, tmp_path: Path
) -> None:
    """The records of a topic go to a new one with fewer partitions. Parquet has no lines."""
    topic = f"{filled}-narrow"
    with odradek.Admin(bootstrap) as admin:
        admin.create_topics([odradek.client.NewTopic(topic, 1)])
    for name, where in (("a.parquet", "column partition: "), ("a.csv", "line "), ("a.json", "line ")):
        file = tmp_path / name
        assert run(["consume", f"{filled}:1", "--output", str(file), "-b", bootstrap]) == 0
        capsys.readouterr()
        text = line_of(capsys, "produce", topic, "--file", str(file), "-b", bootstrap)
        assert text.startswith(f"{file}: {where}")
        assert "no partition 1" in text
        assert "column" in text


def test_a_wrong_format_names_the_content_and_not_its_bytes(
    capsys: pytest.CaptureFixture[str], bootstrap: str, filled: str, topic: str, tmp_path: Path
) -> None:
    file = tmp_path / "a.parquet"
    assert run(["consume", filled, "--output", str(file), "-b", bootstrap]) == 0
    capsys.readouterr()
    for form in ("csv", "json"):
        text = line_of(capsys, "produce", topic, "--file", str(file), "--format", form, "-b", bootstrap)
        assert text == f"{file}: it is Parquet, not {form}: --format parquet reads it"
    text = line_of(capsys, "groups", "reset", "g", "--from-file", str(file), "--dry-run", "-b", bootstrap)
    assert text == f"--from-file {file}: it is Parquet, not text: give a text file in UTF-8"


def test_a_demo_in_a_file_says_that_it_is_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    assert line_of(capsys, "demo", "--data-dir", str(file)).endswith("it is a file, not a directory: give a folder")
