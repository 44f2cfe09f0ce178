"""The script that states how a claim is shown."""

from __future__ import annotations

import pytest

from scripts.proofs import CLIENTS, MEASURED, SCRIPTED, US, Proof, filled, sides_of, state_of

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
