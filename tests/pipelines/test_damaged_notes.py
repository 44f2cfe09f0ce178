"""Each file of a checkpoint and of a table's notes, damaged in each way: one line names it and says what helps."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.brokers import unique
from support.publish import create_topic, numbers, publish

from odradek.core.errors import OdradekError
from odradek.pipelines import ingest, transform
from odradek.pipelines.ingestion import job as ingest_job
from odradek.pipelines.transforms import job as transform_job

FOLDER = b"a folder"
DAMAGES: dict[str, bytes | None] = {
    "removed": None, "a folder": FOLDER, "empty": b"", "half": b"", "no text": b"\xff\xfe\x00\x80\n", "a list": b"[]\n",
    "an object": b"{}\n", "a text": b'"x"\n', "null": b"null\n", "deep": b"[" * 2_000, "other version": b"",
    "offsets are a list": b"v1\n{}\n[]", "offsets are a text": b'v1\n{}\n"x"', "offsets are null": b"v1\n{}\nnull",
    "offsets are numbers": b'v1\n{}\n{"t":5}', "no version": b"zz\n{}\n{}",
    "no settings": b"v1\nzz\n{}",
}  # fmt: skip
HELPS = re.compile(
    "[Rr]estore|another table: another --output|Use that version|another name|Put the checkpoint|move this file"
)
RAW = re.compile(r"Errno|codec|indices|subscriptable|Expecting|Unterminated|out of range|Traceback|<unknown>|attribute")
"""Words of Python and of native code, which say nothing to a user."""


class SparkStarted(Exception):
    """Raised in place of a start of Spark: the run was not refused."""


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: Any, **more: Any) -> None:
        raise SparkStarted

    for module in (ingest_job, transform_job):
        monkeypatch.setattr(module, "start_spark", refuse)


@pytest.fixture(scope="module", params=["parquet", "delta"])
def begun(
    request: pytest.FixtureRequest, spark: Any, bootstrap: str, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """A table with two micro-batches, its checkpoint beside it, and records that the next run would add."""
    topic, place = unique("damaged"), tmp_path_factory.mktemp(str(request.param))
    create_topic(bootstrap, topic, 1)
    publish(bootstrap, topic, numbers(20))
    given = {"topics": topic, "group": unique("g"), "table_format": request.param}
    given |= {"options": {"maxOffsetsPerTrigger": "10"}, "bootstrap_servers": bootstrap}
    assert ingest(**given, output=place / "t", checkpoint=place / "c", spark=spark).rows == 20
    publish(bootstrap, topic, numbers(5))
    return given | {"place": place}


GOES_ON = re.compile(r"commits/0$|\.crc$|/lock$|/number-\d+$")
"""Files whose content no run needs."""


def damaged(name: str, data: bytes) -> Iterator[tuple[str, bytes | None]]:
    """Yields the damages of a file: its new content, or None."""
    for damage, content in DAMAGES.items():
        if damage == "half":
            content = data[: len(data) // 2]
        elif damage == "other version":  # Spark names the file and the remedy if one of its own files has it
            content = re.sub(rb'"version": ?\d', lambda found: found[0][:-1] + b"9", data)
        elif damage.startswith(("offsets", "no ver", "no set")) and "offsets" not in name:
            continue
        if GOES_ON.search(name) and damage not in ("removed", "empty", "no text"):
            continue
        if content != data:
            yield damage, content


def apply(path: Path, content: bytes | None) -> None:
    path.unlink()
    if content is FOLDER:
        path.mkdir()
    elif content is not None:
        path.write_bytes(content)


def test_each_damage_is_a_line_that_helps(begun: dict[str, Any], tmp_path: Path, no_spark: None) -> None:
    """Before, nine of them were tracebacks, and most lines had Python's words and no remedy."""
    place = begun.pop("place")
    paths = [one for one in place.rglob("*") if one.is_file() and "_delta_log" not in one.parts]
    names = [str(path.relative_to(place)) for path in sorted(paths) if path.suffix != ".parquet"]
    wrong, seen = [], 0
    for name in names:
        for damage, content in damaged(name, (place / name).read_bytes()):
            shutil.copytree(place, tmp_path / "w")
            apply(tmp_path / "w" / name, content)
            seen += 1
            said = end_of(begun, tmp_path / "w")
            shutil.rmtree(tmp_path / "w")
            if fault := fault_in(said, name, damage):
                wrong.append(f"{name}, {damage}: {fault}: {said}")
    begun["place"] = place
    assert not wrong, "\n".join(wrong)
    assert seen > 80


def end_of(given: dict[str, Any], place: Path) -> str:
    """Returns the error of a run, or how it went on."""
    try:
        ingest(**given, output=place / "t", checkpoint=place / "c")
    except SparkStarted:
        return "Spark"
    except OdradekError as error:
        return str(error)
    except Exception as error:
        return f"Traceback: {error!r}"
    return "nothing to read"


def fault_in(said: str, name: str, damage: str) -> str:
    """Returns what is wrong with the end of a run; empty if it is right."""
    if said == "Spark":
        return "" if GOES_ON.search(name) or (name, damage) == ("c/commits/1", "removed") else "it is not refused"
    if "\n" in said or RAW.search(said):
        return "it is no plain line"
    if not HELPS.search(said):
        return "it has no remedy"
    is_named = name.rpartition("/")[2] in said or (damage == "removed" and "/w/" + name.partition("/")[0] in said)
    return "" if is_named else "it does not name the file"


def test_a_transform_says_it_before_spark_starts(
    begun: dict[str, Any], bootstrap: str, tmp_path: Path, no_spark: None
) -> None:
    """Before, Spark's own errors were shown, which name neither the file nor what helps."""
    if begun["table_format"] != "parquet":
        pytest.skip("the checkpoint is the same for each format of a table")
    target = unique("target")
    create_topic(bootstrap, target, 1)
    checkpoint = tmp_path / "c"

    def end() -> str:
        try:
            transform(
                bootstrap, topics=begun["topics"], group=begun["group"], to_topic=target, checkpoint=checkpoint,
                sql="SELECT value FROM records",
            )  # fmt: skip
        except SparkStarted:
            return "Spark"
        except OdradekError as error:
            return str(error)
        raise AssertionError("it read nothing")

    wrong = []
    for name in ("metadata", "offsets/0", "offsets/1", "commits/1"):
        for damage, content in damaged(name, (begun["place"] / "c" / name).read_bytes()):
            shutil.copytree(begun["place"] / "c", checkpoint)
            (checkpoint / "odradek-table").unlink()
            apply(checkpoint / name, content)
            said = end()
            shutil.rmtree(checkpoint)
            is_repeated = (name, damage) == ("commits/1", "removed")
            if not is_repeated and (said == "Spark" or RAW.search(said) or not HELPS.search(said)):
                wrong.append(f"{name}, {damage}: {said}")
    assert not wrong, "\n".join(wrong)


DELTA_DAMAGES = ["removed", "a folder", "empty", "half", "no text", "a list", "an object", "a text", "null"]


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_damaged_delta_log_is_a_line_that_helps(
    version: int, begun: dict[str, Any], tmp_path: Path, no_spark: None
) -> None:
    """Before, there were frames of native code and no remedy."""
    if begun["table_format"] != "delta":
        pytest.skip("a Parquet table has no such log")
    given = {name: value for name, value in begun.items() if name != "place"}
    path = f"t/_delta_log/{version:020}.json"
    wrong = []
    for damage in DELTA_DAMAGES:
        data = (begun["place"] / path).read_bytes()
        shutil.copytree(begun["place"], tmp_path / "w")
        apply(tmp_path / "w" / path, data[: len(data) // 2] if damage == "half" else DAMAGES[damage])
        said = end_of(given, tmp_path / "w")
        shutil.rmtree(tmp_path / "w")
        if said == "Spark" and version == 1 and damage in ("empty", "half", "an object"):
            continue  # deltalake takes it for a commit without files
        if said == "Spark" or RAW.search(said) or not HELPS.search(said):
            wrong.append(f"{damage}: {said}")
    assert not wrong, "\n".join(wrong)


def test_a_lost_description_of_a_delta_table_does_not_accuse_its_checkpoint(
    begun: dict[str, Any], tmp_path: Path, no_spark: None
) -> None:
    """Before, the line said that the checkpoint belongs to another query, and advised an adoption, which needs the
    description, too."""
    if begun["table_format"] != "delta":
        pytest.skip("a Parquet table without it is refused as a folder with something else")
    given = {name: value for name, value in begun.items() if name != "place"}
    shutil.copytree(begun["place"], tmp_path / "w")
    (tmp_path / "w" / "t" / "_odradek" / "table.json").unlink()
    assert "t has lost _odradek/table.json, with which it began" in end_of(given, tmp_path / "w")
