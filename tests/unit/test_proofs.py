"""The script that states how a claim is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.proofs import CLIENTS, MEASURED, SCRIPTED, US, Proof, filled, sides_of, state_of, uses_a_foreign_client

WHOLE, TWO = sides_of("A claim."), sides_of("A claim. Observed: (a) this; (b) that (s001).")


def proof(way: str, part: str | bool = False, *, is_slow: bool = False, test: str = "tests/a.py::test") -> Proof:
    return Proof("claim", 1, test, way, part, is_slow)


def test_the_sides_are_in_the_text() -> None:
    assert WHOLE == ("",)
    assert TWO == ("a", "b")


@pytest.mark.parametrize(
    ("proofs", "sides", "state"),
    [
        ([], WHOLE, "open"),
        ([proof(US), proof(CLIENTS)], WHOLE, "by clients"),
        ([proof(US, is_slow=True)], WHOLE, "by us (long suite)"),
        ([proof(CLIENTS, is_slow=True), proof(SCRIPTED)], WHOLE, "by clients"),
        ([proof(CLIENTS, True)], WHOLE, "in part"),
        ([proof(CLIENTS, "a")], TWO, "in part (without b)"),
        ([proof(CLIENTS, True), proof(US, "b")], TWO, "in part (without a)"),
        ([proof(CLIENTS, "a"), proof(MEASURED, "b"), proof(SCRIPTED, "b")], TWO, "measured"),
        ([proof(CLIENTS, "a"), proof(US, "b", is_slow=True)], TWO, "by us (long suite)"),
        ([proof(CLIENTS, "ab"), proof(US, "b", is_slow=True)], TWO, "by clients"),
        ([proof(US)], TWO, "by us"),
    ],
)
def test_a_claim_is_as_strong_as_its_weakest_side(proofs: list[Proof], sides: tuple[str, ...], state: str) -> None:
    assert state_of(proofs, sides) == state


def test_the_page_gets_names_and_states() -> None:
    page = "**Of 0 claims: none.**\n\n| # | claim | shown by | state |\n|---|---|---|---|\n"
    page += "| 1 | One (a) this; (b) that. | old | old |\n| 2 | Two. | old | old |\n"
    found = {
        1: [proof(US, "a"), proof(CLIENTS, "b", test="tests/b.py::test"), proof(US, True, test="tests/c.py::test")]
    }
    lines = filled("claim", page, found).splitlines()
    assert lines[0] == "**Of 2 claims: 1 by us, 1 open.**"
    assert lines[4].endswith("| `a.py::test` (a)<br>`b.py::test` (b)<br>`c.py::test` (in part) | by us |")
    assert lines[5] == "| 2 | Two. | – | open |"


def test_marks_without_a_matching_claim_are_errors() -> None:
    page = "| 1 | One (a) this; (b) that. | old | old |\n"
    with pytest.raises(ValueError, match="side c of claim 1"):
        filled("claim", page, {1: [proof(US, "c")]})
    with pytest.raises(ValueError, match=r"no claim has the numbers \[7\]"):
        filled("claim", page, {7: [proof(US)]})


MODULE = """
import subprocess
from aiokafka import AIOKafkaConsumer as Consumer
from programs import go_program
from odradek import Producer

PROGRAM = "import kafka\\nkafka.KafkaConsumer()"

class Reader:
    def read(self):
        return Consumer("t")

def read():
    return Reader().read()

def publish():
    Consumer("t")

def fixture():
    return Consumer("t")

def built():
    return go_program("franz")

def test_with_a_helper():
    read()

def test_with_an_import():
    from confluent_kafka import Consumer as Imported

def test_with_a_program():
    subprocess.run(["python", "-c", PROGRAM])

def test_with_a_fixture(fixture): ...

def test_with_a_go_program(built): ...

def test_with_kafkas_tools(kafka_tools): ...

def test_without_a_client():
    publish()
    Producer()
"""


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["test_with_a_helper"], True),
        (["test_with_an_import"], True),
        (["test_with_a_program"], True),
        (["test_with_a_fixture", "fixture"], True),
        (["test_with_a_go_program", "built"], True),
        (["test_with_kafkas_tools", "kafka_tools"], True),
        (["test_without_a_client"], False),
    ],
)
def test_a_test_is_by_clients_only_if_it_uses_one(tmp_path: Path, names: list[str], expected: bool) -> None:
    """The module imports a client of another project. That alone does not mark each of its tests as "by clients"."""
    path = tmp_path / "test_example.py"
    path.write_text(MODULE)
    assert uses_a_foreign_client(path, names) == expected
