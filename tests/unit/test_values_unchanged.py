"""Values that a person gives, or that others wrote, are the same afterwards, or there is an error with the place."""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from pathlib import Path

import pytest

from odradek.batches.rows import java_text
from odradek.cli.main import run
from odradek.cli.produce import produce
from odradek.core.errors import ConfigError
from odradek.core.ids import TopicPartition
from odradek.lag import reset_csv
from odradek.pipelines.values.record_values import read_schema
from odradek.text.look_alikes import oddity
from odradek.text.printable import printable, printable_json
from odradek.text.properties_file import read_properties_file
from odradek.zookeeper.export_file import parse_offsets
from odradek.zookeeper.layout import OffsetLayout

DIGITS = "0.1234567890123456789012345678901234567890"


@pytest.mark.parametrize(
    "text",
    ["1.10", "-0", "1E400", "1e-7", DIGITS, "9" * 5000, "[ 1.0,\\t2 ]".replace("\\t", "\t"), "true",
     '{"a": 1.10, "a": 2}', '{"s": "\\u00e9\\ud800"}', "[]", "{}"],
)  # fmt: skip
def test_json_values_are_sent_as_they_stand(text: str) -> None:
    line = f'{{ "key" : {text} ,"value":{text}, "headers": {{"h": {text}}}, "offset": 7}}'.encode()
    assert produce.json_row(line) == {
        "key": text.encode(), "value": text.encode(), "headers": [{"key": "h", "value": text.encode()}],
    }  # fmt: skip
    header = f'{{"key": "h", "value": {text} }}'
    line = f'{{"value": null, "headers": [{header} , {header}]}}'.encode()
    assert produce.json_row(line) == {"value": None, "headers": [{"key": "h", "value": text.encode()}] * 2}


def test_an_error_about_headers_shows_their_text() -> None:
    with pytest.raises(ValueError, match=r'^headers \[\["h", 1\.10\]\]: expected an object, or a list of objects'):
        produce.json_row(b'{"value": "a", "headers": [["h", 1.10]]}')
    with pytest.raises(ValueError, match=r"^headers \[1\.10,\\n2\]: expected an object"):
        produce.headers_cell("[1.10,\n2]")
    with pytest.raises(ValueError, match=r"^headers 'h': expected an object"):
        produce.json_row(b'{"value": "a", "headers": "h"}')


@pytest.mark.parametrize(
    "text",
    ["NaN", "-Infinity", "Infinity", "[NaN]", "01", "1.", ".5", "+1", "0x1", "'a'", "[1,]", '"\t"', "\xa01", "True"],
)
def test_what_rfc_8259_does_not_allow_is_refused_with_its_line(text: str) -> None:
    batches = produce.parse_lines([b'{"value": 1}', f'{{"value": {text}}}'.encode()], produce.json_row, 4)
    next(batches)
    with pytest.raises(ValueError, match=r"^line 6: not JSON"):
        next(batches)


def test_json_is_utf8_with_or_without_a_byte_order_mark() -> None:
    assert produce.json_row(BOM_UTF8 + b'{"value": "a"}') == {"value": b"a"}
    for data in ('{"value": "a"}'.encode("utf-16"), b'{"value": "\xff"}'):
        with pytest.raises(ValueError, match="invalid UTF-8 in byte"):
            produce.json_row(data)


# The results of Java 17, new String(bytes, UTF_8); U+FFFD is written as ?.
@pytest.mark.parametrize(
    ("data", "java"),
    [("61", "a"), ("ff", "?"), ("eda080", "?"), ("eda07f", "?\x7f"), ("edbf", "?"), ("ededbf", "??"), ("c0af", "??"),
     ("f4eda0", "??"), ("f88041f4eda0", "??A??"), ("41dfedbfe17f", "A???\x7f"), ("e282", "?"), ("f09f98", "?"),
     ("c3a9", "\xe9"), ("f0eda0eeedbf", "????"), ("eda0c1c2", "???"), ("eda080edb080", "??")],
)  # fmt: skip
def test_keys_of_headers_are_decoded_as_by_java(data: str, java: str) -> None:
    assert java_text(bytes.fromhex(data)) == java.replace("?", "\ufffd")


def test_a_byte_order_mark_is_no_part_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_bytes(BOM_UTF8 + b"client.id=a\n")
    assert read_properties_file(file, "-c")["client.id"].value == "a"
    file.write_bytes(BOM_UTF8 + b"id bigint")
    assert read_schema(str(file)) == "id bigint"


@pytest.mark.parametrize(
    ("row", "what"),
    [("\u200bbilling,t,0,1", "an invisible"), ("billing\x1b,t,0,1", "an invisible"), ("billing\u2028,t,0,1", "an"),
     ("billing\xa0,t,0,1", "an invisible"), ("billing ,t,0,1", "spaces at its ends"), ("g,t\u202e,0,1", "an invisible"),
     ("\ufeffbilling,t,0,1", "an invisible")],
)  # fmt: skip
def test_a_row_of_a_plan_whose_name_looks_like_another_is_refused(row: str, what: str) -> None:
    with pytest.raises(ConfigError, match=f"line 2: the name .* has {what}"):
        reset_csv.parse(f"billing,t,1,5\n{row}\n", [], "plan")


def test_names_with_letters_of_any_language_are_read() -> None:
    found = reset_csv.parse("\u0437\u0430\u043a\u0430\u0437-v2,t,0,1\r\nbilling, t, 0, 2\r\n", [], "plan")
    assert found == {
        "\u0437\u0430\u043a\u0430\u0437-v2": {TopicPartition("t", 0): 1}, "billing": {TopicPartition("t", 0): 2}
    }  # fmt: skip


@pytest.mark.parametrize(
    ("row", "says"),
    [("b\u0456lling,t,0,1", r"letter U\+0456 \(CYRILLIC SMALL LETTER BYELORUSSIAN-UKRAINIAN I\) among Latin letters"),
     ("g,t\u03bfp,0,1", r"letter U\+03BF \(GREEK SMALL LETTER OMICRON\)"),
     ("b\u200billing,t,0,1", r"character U\+200B \(ZERO WIDTH SPACE\)"), ("b\x07,t,0,1", r"character U\+0007")],
)  # fmt: skip
def test_the_odd_character_of_a_name_is_named(row: str, says: str) -> None:
    with pytest.raises(ConfigError, match=f"^plan, line 1: the name .* {says}"):
        reset_csv.parse(f"{row}\n", [], "plan")


@pytest.mark.parametrize(
    ("char", "says"),
    [
        ("\x07", "U+0007"),
        ("\u200b", "U+200B (ZERO WIDTH SPACE)"),
        ("\xa0", "U+00A0 (NO-BREAK SPACE)"),
        ("\x1b", "U+001B"),
    ],
)
@pytest.mark.parametrize("text", ["secret{}word", "secret{}", "{}secret"])
def test_an_invisible_character_of_a_property_is_named(tmp_path: Path, char: str, says: str, text: str) -> None:
    """The message does not have the value, which may be a password."""
    file = tmp_path / "client.properties"
    file.write_text(f"client.id=a\ngroup.id={text.format(char)}\n", encoding="utf-8")
    with pytest.raises(ConfigError) as refused:
        read_properties_file(file, "-c")
    assert str(refused.value).startswith(f"-c {file}, line 2: the value of group.id has an invisible character {says}:")
    assert "secret" not in str(refused.value)
    file.write_text("group.id=a\\u00a0b\n")
    assert read_properties_file(file, "-c")["group.id"].value == "a\xa0b"


ODD = [
    ("billing\u200b", "an invisible character U+200B (ZERO WIDTH SPACE)"),
    ("bil\x1bling", "an invisible character U+001B"),
    ("billing ", "spaces at its ends"), ("\u202ebilling", "an invisible character U+202E (RIGHT-TO-LEFT OVERRIDE)"),
    ("bill\xa0ing", "an invisible character U+00A0 (NO-BREAK SPACE)"),
    ("\ufeffbilling", "an invisible character U+FEFF"),
    ("b\u0456lling", "the letter U+0456"), ("billing\u3164", "an invisible character U+3164 (HANGUL FILLER)"),
    ("billing\U000e0041", "an invisible character U+E0041"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "what"), ODD)
def test_no_command_creates_a_group_whose_name_looks_like_another(
    name: str, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (
        ["consume", "t", "--group", name],
        ["pipeline", "ingest", "--topics", "t", "--output", "/tmp/none", "--group", name],
        ["pipeline", "transform", "--topics", "t", "--to-topic", "u", "--checkpoint", "/tmp/none", "--sql", "x",
         "--group", name],
        ["pipeline", "adopt", "--output", "/tmp/none", "--group", name],
    ):  # fmt: skip
        assert run([*command, "-b", "127.0.0.1:1"]) == 2
        found = capsys.readouterr().err
        assert found.startswith(f"odradek: --group {name!a}: the name has {what}"), command
        assert found.count("\n") == 1
        assert found.isascii()


@pytest.mark.parametrize("name", ["billing", "b 1", "\u0431\u0438\u043b\u043b", "caf\xe9", "\u6771\u4eac-1", "\u03b1"])
def test_names_in_one_script_are_no_oddities(name: str) -> None:
    assert oddity(name) is None


@pytest.mark.parametrize("odd", ["\u200b", "\xad", "\ufeff", "\u2060", "\U000e0041", "\u202e"])
def test_invisible_characters_are_shown(odd: str) -> None:
    assert printable(f"a{odd}b") == f"a{ascii(odd)[1:-1]}b"
    shown = printable_json(json.dumps({f"a{odd}": odd}, ensure_ascii=False))
    assert shown.isascii()
    assert json.loads(shown) == {f"a{odd}": odd}
    assert printable("\U0001f468\u200d\U0001f469") == "\U0001f468\u200d\U0001f469", "joiners are part of emoji"


def test_a_path_in_a_file_of_zookeeper_looks_as_it_is() -> None:
    path = "/consumers/g\u200b/offsets/t/0"
    with pytest.raises(ConfigError, match=r"line 1: the path .* has an invisible character U\+200B"):
        parse_offsets(f"{path}:7\n", OffsetLayout(), "f")
