"""Words in another order, and values whose place is easily forgotten: the line names the command, or the place."""

from __future__ import annotations

from pathlib import Path

import pytest

from odradek.cli.main import run

Capture = pytest.CaptureFixture[str]
NOWHERE = "127.0.0.1:1"


def line_of(words: str | list[str], capsys: Capture, code: int = 2) -> str:
    assert run(words.split() if isinstance(words, str) else words) == code
    out, error = capsys.readouterr()
    assert not out
    (line,) = error.splitlines()
    return line.removeprefix("odradek: ")


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("describe groups billing", "odradek groups describe"),
        ("delete group billing --yes", "odradek groups delete"),
        ("describe-producers transactions orders", "odradek transactions describe-producers"),
        ("groups-describe billing", "odradek groups describe"),
        ("list-topics", "odradek topics list"),
        ("topic-list", "odradek topics list"),
        ("kafka-delete-records x", "odradek topics delete-records"),
        ("topics orders describe", "odradek topics describe orders"),
        ("groups 5a3f09c1 apply", "odradek groups apply 5a3f09c1"),
        ("leader-election --all-topic-partitions", "odradek topics elect"),
        ("ui", "odradek monitor"),
        ("zk reset billing", "odradek zookeeper"),
        ("groups zookeeper", "odradek zookeeper groups"),
        ("describe", "odradek groups describe or odradek topics describe or "),
        ("strays", "odradek metadata strays"),
    ],
)
def test_words_in_another_order_get_the_command(words: str, meant: str, capsys: Capture) -> None:
    line = line_of(words, capsys)
    assert line.startswith("no such command ")
    assert f": write {meant}" in line or f": here, {meant}" in line


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("-b h:1 groups describe billing", "no such option -b: write it after the command: odradek groups describe -b"),
        ("--data-dir d serve", "no such option --data-dir: write it after the command: odradek serve --data-dir"),
        ("cluster --data-dir convert d", "write it after the command: odradek cluster convert --data-dir"),
        ("--describe --topic orders -b h:1", "no such option --describe: here, odradek topics describe"),
        ("--list", "no such option --list: here, odradek groups list or odradek topics list or odradek transactions"),
        ("topics -b h:1", "no such option -b: a command is missing before it: "),
        ("zookeeper import --file f -z h:1 --no-last-read", "without --last-read it is off: leave both out"),
        (
            "topics alter --topic t -b h:1",
            "no such option --topic: TOPIC stands without it: odradek topics alter TOPIC",
        ),
        ("topics delete -orders --yes -b h:1", "no such option -orders: a name that begins with - stands after --"),
        ("topics describe --exclude-internal -b h:1", "here, odradek topics list --exclude-internal"),
        ("topics describe --topics-with-overrides -b h:1", "here, odradek topics describe TOPIC"),
        ("topics elect --all-topic-partitions -b h:1", "no such option --all-topic-partitions: here, --all"),
    ],
)
def test_an_option_before_the_command_is_put_in_its_place(words: str, says: str, capsys: Capture) -> None:
    assert says in line_of(words, capsys)


def test_an_address_is_named_with_its_place(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    assert line_of("topics list -b h", capsys).startswith("-b 'h': expected HOST:PORT")
    monkeypatch.setenv("ODRADEK_BOOTSTRAP_SERVERS", "h")
    assert line_of("topics list", capsys).startswith("ODRADEK_BOOTSTRAP_SERVERS 'h': expected HOST:PORT")
    monkeypatch.setenv("ODRADEK_BOOTSTRAP_SERVERS", NOWHERE)
    assert line_of("topics list", capsys, 1).endswith("check ODRADEK_BOOTSTRAP_SERVERS")
    assert line_of(f"topics list --bootstrap-server {NOWHERE}", capsys, 1).endswith("check --bootstrap-server")
    monkeypatch.setenv("ODRADEK_COMMAND_CONFIG", "no-such-file")
    for command in (f"topics list -b {NOWHERE}", f"produce t -b {NOWHERE}", f"pipeline history -b {NOWHERE}"):
        assert line_of(command, capsys).startswith("ODRADEK_COMMAND_CONFIG no-such-file: No such file or directory: ")


@pytest.mark.parametrize("port", ["0", "65536", "99999"])
def test_a_port_out_of_range_is_named(port: str, capsys: Capture) -> None:
    assert line_of(f"topics list -b h:{port}", capsys) == f"-b 'h:{port}': a port is a number from 1 to 65535"


def test_a_slip_in_a_file_of_settings_is_named(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "client.properties"
    file.write_text("security.protcol=SSL\n")
    line = f"--command-config {file}, line 1: unknown setting security.protcol; did you mean security.protocol?"
    for command in ("topics list", "produce t", "pipeline replay --topics t --output o"):
        assert line_of([*command.split(), "-b", NOWHERE, "--command-config", str(file)], capsys) == line
    file.write_text("akcs=all\nschema.registry.url=http://127.0.0.1:8081\n")
    assert run(["topics", "list", "-b", NOWHERE, "--command-config", str(file)]) == 1
    first = capsys.readouterr().err.splitlines()[0]
    assert first == f"--command-config {file}: not used here: akcs (did you mean acks?), schema.registry.url"


def test_values_of_pipelines_are_named_with_their_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    ingest = ["pipeline", "ingest", "--group", "g", "--topics", "t", "--output", "lake", "-b", NOWHERE]
    transform = ["pipeline", "transform", "--group", "g", "--topics", "t", "--to-topic", "u", "--checkpoint", "c",
                 "--sql", "SELECT value FROM records", "-b", NOWHERE]  # fmt: skip
    assert line_of([*ingest, "--trigger", "0s"], capsys).startswith("--trigger '0s': expected")
    for command in (ingest, transform):
        assert line_of([*command, "--master", "x y"], capsys).startswith("--master 'x y': expected local[N]")
    line = line_of([*ingest, "--option", "min.insync.replicas=9"], capsys)
    assert line == (
        "--option min.insync.replicas: unknown option (--option strictOptions=false lets unknown options pass)"
    )
    for more, says in (
        (("--task-size", "-5s"), "--task-size: expected a size such as 64m"),
        (("--partition-by", "day"), "--partition-by day: the table's columns are"),
    ):
        assert line_of([*ingest, *more], capsys).startswith(says)
    consume = ["consume", "t", "-b", NOWHERE, "--isolation", "5"]
    assert line_of(consume, capsys) == "--isolation '5': expected read_committed or read_uncommitted"
    serve = ["serve", "--data-dir", "d", "--listen", "127.0.0.1:0", "--config", "node.id=x"]
    assert line_of(serve, capsys) == "--config node.id=x: Not a number of type INT"
    assert list(tmp_path.iterdir()) == []


def test_a_monitor_needs_a_folder_for_its_data(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("a\n")
    monitor = ["monitor", "--listen", "127.0.0.1:0", "-b", NOWHERE]
    for wrong in (file, file / "below"):
        assert line_of([*monitor, "--data", str(wrong)], capsys) == (
            f"--data {wrong} is a file, or in one: give a folder"
        )
    assert line_of([*monitor, "--keep", "7d"], capsys).startswith("--keep needs --data DIR: ")


def test_a_file_is_no_folder_of_plans(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "secret"
    file.write_text("x")
    assert line_of(["groups", "plans", "--plans", str(file)], capsys) == f"--plans {file} is a file: give a folder"


@pytest.mark.parametrize(
    ("name", "why"),
    [("x" * 300, "a name has at most 249 characters, and this one has 300"), ("..", "'.' and '..' are no names"),
     ("a/b", "a name has only the letters a-z and A-Z")],
)  # fmt: skip
def test_a_wrong_name_of_a_topic_has_its_reason(name: str, why: str, bootstrap: str, capsys: Capture) -> None:
    for words in (["topics", "describe", name], ["consume", name], ["topics", "delete", name, "--yes"]):
        assert why in line_of([*words, "-b", bootstrap], capsys)


def test_a_space_at_the_end_of_a_group_is_visible(bootstrap: str, capsys: Capture) -> None:
    assert "group 'billing ' not found" in line_of(["groups", "state", "billing ", "-b", bootstrap], capsys)


def test_of_several_changes_none_is_made_if_one_is_refused(bootstrap: str, capsys: Capture) -> None:
    brokers = ["-b", bootstrap]
    assert "INVALID_TOPIC_EXCEPTION" in line_of(["topics", "create", "first", "seco nd", *brokers], capsys)
    assert run(["topics", "create", "second", "third", *brokers]) == 0
    assert run(["topics", "list", "--json", *brokers]) == 0
    assert "first" not in capsys.readouterr().out
    change = ["topics", "alter", "second", "--partitions", "1", "--config", "retention.ms=1"]
    assert "INVALID_PARTITIONS" in line_of([*change, *brokers], capsys)
    assert run(["topics", "describe", "second", *brokers]) == 0
    assert "retention.ms" not in capsys.readouterr().out


def test_the_file_or_option_with_the_wrong_value_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("one").write_text('{"op": "send"}')
    Path("binary").write_bytes(b"\xff\xfe")
    assert line_of("check-history binary one", capsys).startswith("binary is not UTF-8 text (")
    assert line_of(f"zookeeper groups -z {NOWHERE[:-1]}0", capsys).endswith("a port is a number from 1 to 65535")
    assert "--timeout" not in line_of(f"cluster unregister 1 2 -b {NOWHERE}", capsys)
    Path("page.html").write_text("<html><body>no token</body></html>\n")
    line = line_of(f"monitor --listen 127.0.0.1:0 -b {NOWHERE} --token-file page.html", capsys)
    assert line.startswith("--token-file page.html: a token has no spaces")
    line = line_of(f"monitor --listen 127.0.0.1:0 -b {NOWHERE} --allowed-host http://x", capsys)
    assert line == "--allowed-host 'http://x': expected the name of a host, such as monitor.example.com"
    assert line_of(f"cluster cluster-id -b {NOWHERE}", capsys).endswith("here, odradek cluster describe")
    line = line_of(["pipeline", "transform", "--group", "g", "--topics", "t", "--to-topic", "u", "--checkpoint", "c",
                    "--sql", "SELECT value FROM records", "--producer-option", "cleanup.policy=x", "-b", NOWHERE],
                   capsys)  # fmt: skip
    assert line.startswith("--producer-option cleanup.policy: unknown option")


def test_a_folder_with_other_files_is_no_table(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "rows.csv").write_text("a,b\n")
    line = line_of(["pipeline", "verify", str(tmp_path)], capsys)
    assert line == f"{tmp_path} is no table: {tmp_path}/rows.csv is not Parquet: give the folder of a table"


def test_one_group_has_no_search(capsys: Capture) -> None:
    line = line_of(f"top --once -b {NOWHERE} --group billing --search x", capsys)
    assert line == "--group shows one group, and --search chooses several: leave one out"
