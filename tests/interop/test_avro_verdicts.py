"""Avro schemas at the library of Java, from the jars of PySpark: random pairs, other ones than the recorded ones."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from avro_pairs import pairs

from odradek.schemas.avro import compatibility, parser, text
from odradek.schemas.errors import InvalidSchema

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("javac") is None, reason="needs a JDK"),
]
PROGRAM = Path(__file__).parents[1] / "oracle" / "avro" / "AvroVerdicts.java"
COUNT = 4_000


def ours(given: Any) -> tuple[Any, str]:
    """The parsed schema with its canonical text; None and ``error`` for a refused one."""
    try:
        found = parser.parse(json.dumps(given))
    except InvalidSchema:
        return None, "error"
    return found, text.canonical_text(found)


@pytest.mark.parametrize("seed", [1, 2])
def test_random_pairs_have_the_same_texts_and_verdicts(seed: int, tmp_path: Path) -> None:
    pyspark = pytest.importorskip("pyspark", reason="needs odradek[spark] for Avro's jar")
    jars = str(Path(pyspark.__file__).parent / "jars" / "*")
    subprocess.run(["javac", "-cp", jars, "-d", str(tmp_path), str(PROGRAM)], check=True, timeout=300)
    rows = list(pairs(COUNT, seed))
    given = "".join(f"{json.dumps(one)}\n" for pair in rows for one in pair)
    command = ["java", "-cp", f"{jars}:{tmp_path}", "AvroVerdicts"]
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=300, check=True)
    lines = done.stdout.split("\n")
    for number, (reader, writer) in enumerate(rows):
        theirs = lines[3 * number : 3 * number + 3]
        (own_reader, reader_text), (own_writer, writer_text) = ours(reader), ours(writer)
        for mine, other in ((reader_text, theirs[0]), (writer_text, theirs[1])):
            assert mine == ("error" if other.startswith("error") else other)
        if own_reader is None or own_writer is None:
            continue
        try:
            found: Any = [list(one) for one in compatibility.incompatibilities(own_reader, own_writer)]
        except ValueError:
            found = "error"
        assert found == json.loads(theirs[2]), (reader, writer)
