"""Fills the columns "shown by" and "state" of docs/claims.md and docs/offset-behaviours.md from the tests themselves.

A test names what it shows by a mark: ``@pytest.mark.claim(43, 49)``, ``@pytest.mark.behaviour(7)``; where it shows one
side only, ``part=True``. How a test shows it follows from the test (see ``way_of``) or from ``by="measured"`` in the
mark. ``python scripts/proofs.py`` collects all tests and rewrites both tables; a test holds them against what pytest
has collected.
"""

from __future__ import annotations

import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"
PAGES = {"claim": ROOT / "docs" / "claims.md", "behaviour": ROOT / "docs" / "offset-behaviours.md"}
CLIENTS, US, MEASURED, SCRIPTED = "by clients", "by us", "measured", "by a scripted broker"
WAYS = (CLIENTS, US, MEASURED, SCRIPTED)
"""The most convincing first."""
PART, OPEN = "in part", "open"
FOREIGN = ("aiokafka", "confluent_kafka", "kafka")
"""Python clients of others."""
MOST_SHOWN = 4
ROW = re.compile(r"^\| (\d+) \|(.*)\|([^|]*)\|([^|]*)\|$")
COUNTS = re.compile(r"^\*\*Of \d+ .*$", re.MULTILINE)


class Proof(NamedTuple):
    """What one test shows of one claim. ``test`` is its name as pytest takes it."""

    kind: str
    number: int
    test: str
    way: str
    is_part: bool
    is_slow: bool


def way_of(item: Any) -> str:
    """By clients: a broker, and a client that is not ours. By a scripted broker: our client, and answers from a table.
    By us: our own code on both sides, or one room of it."""
    path = item.path.relative_to(TESTS)
    modules = {
        getattr(value, "__module__", None) or getattr(value, "__name__", "") for value in vars(item.module).values()
    }
    roots = {str(name).partition(".")[0] for name in modules}
    if path.parts[0] == "interop" or "java" in item.fixturenames:
        return CLIENTS
    if path.parts[0] == "broker" and roots & set(FOREIGN):
        return CLIENTS
    if path.parts[0] == "client" and "support.scripted" in modules:
        return SCRIPTED
    return US


def proofs_of(items: Iterable[Any]) -> list[Proof]:
    """What the collected tests show. The cases of one function count as one test, unless a mark is on a case alone."""
    found: dict[tuple[str, int, str], Proof] = {}
    for item in items:
        whole = item.nodeid.partition("[")[0]
        own = {id(mark) for mark in getattr(item.function, "pytestmark", ())}
        for mark in item.iter_markers():
            if mark.name not in PAGES:
                continue
            test = whole if id(mark) in own else item.nodeid
            is_slow = item.get_closest_marker("slow") is not None
            for number in mark.args:
                way = mark.kwargs.get("by") or way_of(item)
                proof = Proof(mark.name, number, test, way, bool(mark.kwargs.get("part")), is_slow)
                known = found.get(proof[:3])
                if known is not None:
                    proof = proof._replace(is_part=proof.is_part and known.is_part, is_slow=is_slow and known.is_slow)
                found[proof[:3]] = proof
    return list(found.values())


def state_of(proofs: list[Proof]) -> str:
    """The most convincing way in which all of it is shown, and what keeps ``make test`` from showing it anywhere."""
    whole = [proof for proof in proofs if not proof.is_part]
    if not whole:
        return PART if proofs else OPEN
    way = next(way for way in WAYS if any(proof.way == way for proof in whole))
    if all(proof.is_slow for proof in whole):
        return f"{way} (long suite)"
    return way


def filled(kind: str, page: str, proofs: Mapping[int, list[Proof]]) -> str:
    lines = []
    counts: Counter[str] = Counter()
    for line in page.splitlines():
        row = ROW.match(line)
        if row is None:
            lines.append(line)
            continue
        found = sorted(proofs.get(int(row[1]), []), key=lambda one: (one.is_part, WAYS.index(one.way), one.test))
        tests = [f"`{proof.test.removeprefix('tests/')}`" for proof in found[:MOST_SHOWN]]
        more = [f"and {len(found) - MOST_SHOWN} more"] if len(found) > MOST_SHOWN else []
        state = state_of(found)
        counts[state.partition(" (")[0]] += 1
        lines.append(f"| {row[1]} |{row[2]}| {'<br>'.join(tests + more) or '–'} | {state} |")
    said = ", ".join(f"{counts[state]} {state}" for state in (*WAYS, PART, OPEN) if counts[state])
    return COUNTS.sub(f"**Of {counts.total()} {kind}s: {said}.**", "\n".join(lines) + "\n", count=1)


def stale_pages(proofs: Iterable[Proof]) -> dict[Path, str]:
    """The pages whose tables say something else than the tests, and what they should be."""
    by_kind: dict[str, dict[int, list[Proof]]] = {kind: defaultdict(list) for kind in PAGES}
    for proof in proofs:
        by_kind[proof.kind][proof.number].append(proof)
    pages = {page: (page.read_text(), filled(kind, page.read_text(), by_kind[kind])) for kind, page in PAGES.items()}
    return {page: after for page, (before, after) in pages.items() if after != before}


def collected() -> list[Any]:
    """All tests, as pytest finds them."""
    import pytest

    class Collector:
        items: list[Any]

        def pytest_collection_modifyitems(self, items: list[Any]) -> None:
            self.items = list(items)

    collector = Collector()
    code = pytest.main(
        ["--collect-only", "-p", "no:terminal", "-o", "addopts=--strict-markers", "--rootdir", str(ROOT), str(TESTS)],
        [collector],
    )
    if code != pytest.ExitCode.OK:
        raise SystemExit(f"the tests cannot be collected: pytest ended with {code}")
    return collector.items


def main() -> None:
    for page, text in stale_pages(proofs_of(collected())).items():
        page.write_text(text)
        print(f"written: {page.relative_to(ROOT).as_posix()}")


if __name__ == "__main__":
    sys.exit(main())
