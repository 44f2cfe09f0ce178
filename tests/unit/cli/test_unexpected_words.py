"""A word that stands where no argument is expected: the line says what it may be, and never offers a wrong option."""

from __future__ import annotations

from pathlib import Path

import pytest

from odradek.cli.main import run

Capture = pytest.CaptureFixture[str]
INGEST = "pipeline ingest --group g --output o -b h:1"
REPLAY = "pipeline replay --output o -b h:1"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (f"{INGEST} confluent --value-format avro", "confluent: is it a value of an option? Here, --framing confluent"),
        (f"{INGEST} --value-format avro confluent", "confluent: is it a value of an option? Here, --framing confluent"),
        (f"{INGEST} delta", "delta: is it a value of an option? Here, --table-format delta"),
        (f"{INGEST} earliest", "earliest: is it a value of an option? Here, --from earliest"),
        (f"{INGEST} ./user.avsc", "./user.avsc: is it a file? Here, --schema ./user.avsc or --command-config ./user"),
        (f"{INGEST} s3a://b/t", "s3a://b/t: is it a folder? Here, --checkpoint s3a://b/t"),
        (f"{INGEST} 5", "5: is it a number? Here, --max-offsets 5 or --files-per-batch 5"),
        (f"{INGEST} --max-offsets 5 6", "6: --max-offsets takes one value; quote a value with spaces"),
        (f"{INGEST} orders", "orders: is it a topic? Here, --topics orders"),
        (f"{INGEST} lake", "lake: is it a topic? Here, --topics lake"),  # although it is also a folder
        (f"{REPLAY} 2026-01-31T12:00:00", "is it a time? Here, --from 2026-01-31T12:00:00 or --to 2026-01-31T12"),
        ("pipeline history -b h:1 7d", "7d: is it a span of time? Here, --since 7d or --expires-within 7d"),
        ("pipeline history -b h:1 page.html", "page.html: is it a file? Here, --report page.html"),
        ("pipeline history -b h:1 billing", "billing: is it a group? Here, --group billing"),
        ("consume t -b h:1 json", "json: is it a value of an option? Here, --format json"),
        ("consume t -b h:1 u", "u: the command takes one TOPIC[:0,1], and each other value follows its option"),
        ("topics list -b h:1 h:2", "h:2: -b takes addresses with commas between them: -b h:1,h:2 (see"),
        ("monitor -b h:1 127.0.0.1:8000", "127.0.0.1:8000: is it an address? Here, --listen 127.0.0.1:8000"),
        ("serve lake", "lake: is it a folder? Here, --data-dir lake"),
        ("topics list t -b h:1", "t: odradek topics describe t shows a topic"),
        ("zookeeper groups g -z h:1", "g: it lists all groups; odradek zookeeper describe g shows one"),
        ("metadata strays t-0 --data-dir d", "t-0: each value follows its option (see odradek metadata strays"),
        ("demo 1000", "1000: is it a number? Here, --more 1000"),
    ],
)
def test_an_unexpected_word_is_placed(
    line: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lake").mkdir()
    assert run(line.split()) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.startswith("odradek: unexpected argument ")
    assert says in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("zookeeper migrate kafka -z h:1 -b h:1", "missing option --to: is kafka meant? Here, --to kafka"),
        ("groups delete-offsets g t -b h:1", "missing option --topic: is t meant? Here, --topic t"),
        ("zookeeper groups -z h:1 --topic t", "--topic: here, odradek zookeeper describe GROUP --topic TOPIC"),
        ("zookeeper groups -z h:1 --group g", "--group: here, odradek zookeeper describe GROUP"),
        (
            "zookeeper groups -z h:1 --path-topic t",
            "--path-topic is for a --path without {topic}: add --path, or leave it out",
        ),
    ],
)
def test_a_missing_option_names_its_value(line: str, says: str, capsys: Capture) -> None:
    assert run(line.split()) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (
            "groups state g --plans d -b h:1",
            "--plans: odradek groups plans and odradek groups apply have it (see odradek g",
        ),
        (
            "pipeline history --function m:f -b h:1",
            "--function: odradek pipeline transform has it (see odradek pipeline",
        ),
        ("zookeeper import --file f --to-earliest -z h:1", "--to-earliest: odradek zookeeper reset has it (see"),
    ],
)
def test_an_option_of_a_neighbour_names_its_command(line: str, says: str, capsys: Capture) -> None:
    """Before, the line named only a help that does not have the option."""
    assert run(line.split()) == 2
    assert says in capsys.readouterr().err


def test_a_folder_of_plans_that_is_a_file_is_named(tmp_path: Path, capsys: Capture) -> None:
    """Before, the advice was to make a new plan."""
    (tmp_path / "file").write_text("")
    assert run(["groups", "apply", "5a3f09c1", "--execute", "-b", "h:1", "--plans", str(tmp_path / "file")]) == 2
    assert capsys.readouterr().err == f"odradek: --plans {tmp_path / 'file'} is a file: give a folder\n"


@pytest.mark.parametrize(
    "line",
    [
        "groups reset g --topic t -b h:1 --to-datetime",
        "consume t -b h:1 --from",
        "pipeline replay --topics t --dry-run -b h:1 --from",
        "pipeline replay --read-by g --dry-run -b h:1 --since",
    ],
)
def test_a_time_with_the_name_of_a_zone_says_how_to_write_the_zone(line: str, capsys: Capture) -> None:
    assert run([*line.split(), "2026-11-30 10:00 CET"]) == 2
    assert "+01:00" in capsys.readouterr().err
