"""Fills the columns "shown by" and "state" of docs/claims.md and docs/offset-behaviours.md from the tests.

A test names the claims that it shows: ``@pytest.mark.claim(43, 49)``, ``@pytest.mark.behaviour(7)``. The texts of some
claims have sides, marked (a), (b), …; ``part="ab"`` names the sides that a test shows. ``part=True`` is for a test that
belongs to a claim and shows no whole side of it. How a test shows a claim follows from the test (see ``way_of``) or
from the mark: ``by`` is one of ``WAYS``. ``python scripts/proofs.py`` collects all tests and rewrites both tables; a
test compares the tables with the tests that pytest has collected.
"""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"
PAGES = {"claim": ROOT / "docs" / "claims.md", "behaviour": ROOT / "docs" / "offset-behaviours.md"}
CLIENTS, US, MEASURED, SCRIPTED = "by clients", "by us", "measured", "by a scripted broker"
WAYS = (CLIENTS, US, MEASURED, SCRIPTED)
"""The ways of showing a claim, the most convincing one first."""
PART, OPEN = "in part", "open"
FOREIGN = ("aiokafka", "confluent_kafka", "kafka")
"""Python clients of other projects."""
FOREIGN_IMPORT = re.compile(rf"^\s*(import|from) ({'|'.join(FOREIGN)})\b", re.MULTILINE)
FOREIGN_FIXTURES = {"java", "kafka_cp", "kafka_tools"}
"""Fixtures that give a test Apache Kafka's own programs."""
FOREIGN_STARTERS = {"Member", "go_program", "java_classes", "kafka_command", "node_modules"}
"""Names that build a client of another project, or start it in a process of its own."""
PREPARATIONS = {"admin", "commit", "create_topic", "publish"}
"""Functions of the tests that prepare topics, records and commits with confluent-kafka. Tests of odradek's own client
call them, too, so they do not count as the use of a client of another project."""
SIMULATED = ("support.scripted", "support.simulated_cluster")
"""Modules with simulated brokers."""
BROKER_FIXTURES = {"bootstrap", "own_broker"}
"""Fixtures that start our broker."""
MOST_SHOWN = 4
WHOLE = ""
"""The only side of a claim whose text has no letters."""
SIDE = re.compile(r"\(([a-e])\)")
ROW = re.compile(r"^\| (\d+) \|(.*)\|([^|]*)\|([^|]*)\|$")
COUNTS = re.compile(r"^\*\*Of \d+ .*$", re.MULTILINE)


class Proof(NamedTuple):
    """The part of one claim that one test shows.

    ``test``: pytest's name of the test. ``way``: one of ``WAYS``. ``part``: the letters of the sides that the test
    shows; True if the test shows no whole side; False if it shows all of the claim.
    """

    kind: str
    number: int
    test: str
    way: str
    part: str | bool
    is_slow: bool

    def shows(self, side: str) -> bool:
        return side in self.part if isinstance(self.part, str) else not self.part


@cache
def definitions(path: Path) -> dict[str, ast.AST]:
    """The functions, classes and constants that a module defines, and its imports, by name."""
    found: dict[str, ast.AST] = {}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name.partition(".")[0]: node for alias in node.names}
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.Assign):
            found |= {target.id: node for target in node.targets if isinstance(target, ast.Name)}
    return found


def uses_of(node: ast.AST) -> Iterator[str]:
    """The names that a definition uses, and the names that it imports."""
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            yield part.id
        elif isinstance(part, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in part.names)


def texts_of(node: ast.AST) -> Iterator[str]:
    """The strings in a definition; some are programs."""
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value


def imported_file(node: ast.ImportFrom, path: Path) -> Path | None:
    """The file below ``tests`` from which the module ``path`` imports a name; None if there is no such file."""
    name = f"{(node.module or '').replace('.', '/')}.py"
    return next((folder / name for folder in (path.parent, TESTS) if (folder / name).is_file()), None)


def uses_a_foreign_client(path: Path, names: Iterable[str]) -> bool:
    """Whether a test uses a client of another project. ``names`` are the test and its fixtures in the module ``path``.
    The functions, classes and constants that they use count, too, except those in ``PREPARATIONS``.
    """
    left = [(path, name) for name in names]
    seen: set[tuple[Path, str]] = set()
    while left:
        module, name = left.pop()
        node = definitions(module).get(name)
        if name in FOREIGN_FIXTURES or (name in FOREIGN_STARTERS and isinstance(node, ast.ImportFrom)):
            return True
        if node is None or name in PREPARATIONS or (module, name) in seen:
            continue
        seen.add((module, name))
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else [one.name for one in node.names]
            if {one.partition(".")[0] for one in modules} & set(FOREIGN):
                return True
            source = imported_file(node, module) if isinstance(node, ast.ImportFrom) else None
            if source is not None:
                left += [(source, one.name) for one in node.names if name == (one.asname or one.name)]
        elif FOREIGN_IMPORT.search("\n".join(texts_of(node))):
            return True
        else:
            left += [(module, used) for used in uses_of(node)]
    return False


def way_of(item: Any) -> str:
    """How a test shows a claim.

    ``CLIENTS``: a broker, and a client of another project. ``SCRIPTED``: odradek's client, and replies from a table or
    a simulated cluster. ``US``: odradek's code on both sides, or one module of odradek.
    """
    folder = item.path.relative_to(TESTS).parts[0]
    if "java" in item.fixturenames:
        return CLIENTS
    if folder in ("broker", "interop") and uses_a_foreign_client(
        item.path, (item.function.__name__, *item.fixturenames)
    ):
        return CLIENTS
    modules = {
        getattr(value, "__module__", None) or getattr(value, "__name__", "") for value in vars(item.module).values()
    }
    if folder == "client" and modules & set(SIMULATED) and not BROKER_FIXTURES & set(item.fixturenames):
        return SCRIPTED
    return US


def proofs_of(items: Iterable[Any]) -> list[Proof]:
    """The proofs of the collected tests.

    All cases of a parametrized function count as one test. A mark of a single case counts for this case alone.
    """
    found: dict[tuple[str, int, str, str | bool], Proof] = {}
    for item in items:
        function = item.nodeid.partition("[")[0]
        own = {id(mark) for mark in getattr(item.function, "pytestmark", ())}
        for mark in item.iter_markers():
            if mark.name not in PAGES:
                continue
            test = function if id(mark) in own else item.nodeid
            is_slow = item.get_closest_marker("slow") is not None
            way, part = mark.kwargs.get("by") or way_of(item), mark.kwargs.get("part", False)
            for number in mark.args:
                proof = Proof(mark.name, number, test, way, part, is_slow)
                key = (mark.name, number, test, part)
                if key in found:
                    proof = proof._replace(is_slow=is_slow and found[key].is_slow)
                found[key] = proof
    return list(found.values())


def sides_of(text: str) -> tuple[str, ...]:
    """The letters of the sides in the text of a claim."""
    return tuple(dict.fromkeys(SIDE.findall(text))) or (WHOLE,)


def weakest(proofs: Sequence[Proof], sides: Sequence[str]) -> str | None:
    """Returns the least convincing of the sides' ways; None if a side has no proof.

    The way of a side is that of its most convincing proof.
    """
    best = [min((WAYS.index(proof.way) for proof in proofs if proof.shows(side)), default=None) for side in sides]
    return None if None in best else WAYS[max(place for place in best if place is not None)]


def state_of(proofs: Sequence[Proof], sides: Sequence[str]) -> str:
    """The text of the column "state".

    It is the way in which all sides are shown, with a note if only the long suite shows them all. It is "in part" if a
    side is missing, and "open" if no test has the claim.
    """
    way = weakest(proofs, sides)
    if way is None:
        missing = [side for side in sides if not any(proof.shows(side) for proof in proofs)]
        if len(missing) == len(sides):
            return PART if proofs else OPEN
        return f"{PART} (without {', '.join(missing)})"
    if weakest([proof for proof in proofs if not proof.is_slow], sides) is None:
        return f"{way} (long suite)"
    return way


def shown_by(proofs: Sequence[Proof], sides: Sequence[str]) -> list[str]:
    """The lines of the column "shown by": the most convincing tests with their sides, at least one for each shown side.

    The last line counts the other tests, if there are any.
    """
    by_test: dict[str, list[Proof]] = defaultdict(list)
    for proof in sorted(proofs, key=lambda one: (one.part is True, isinstance(one.part, str), WAYS.index(one.way))):
        by_test[proof.test].append(proof)
    tests = list(by_test)
    first: list[str] = []
    for side in sides:
        showing = [
            (WAYS.index(proof.way), proof.is_slow, tests.index(proof.test)) for proof in proofs if proof.shows(side)
        ]
        if showing and tests[min(showing)[2]] not in first:
            first.append(tests[min(showing)[2]])
    chosen = (first + [test for test in tests if test not in first])[: max(MOST_SHOWN, len(first))]
    lines = []
    for test in chosen:
        letters = [side for side in sides if side and any(proof.shows(side) for proof in by_test[test])]
        if all(proof.part is True for proof in by_test[test]):
            note = f" ({PART})"
        else:
            note = f" ({', '.join(letters)})" if letters and len(letters) < len(sides) else ""
        lines.append(f"`{test.removeprefix('tests/')}`{note}")
    return lines + ([f"and {len(tests) - len(chosen)} more"] if len(tests) > len(chosen) else [])


def filled(kind: str, page: str, proofs: Mapping[int, list[Proof]]) -> str:
    """The whole page, with new counts and new contents of the last two columns.

    Raises ValueError for a mark whose claim or side is not on the page.
    """
    lines = []
    counts: Counter[str] = Counter()
    unknown = set(proofs)
    for line in page.splitlines():
        row = ROW.match(line)
        if row is None:
            lines.append(line)
            continue
        number, sides = int(row[1]), sides_of(row[2])
        found = sorted(proofs.get(number, []), key=lambda one: one.test)
        unknown.discard(number)
        for proof in found:
            if isinstance(proof.part, str) and not set(proof.part) <= set(sides):
                raise ValueError(f"{proof.test} shows side {proof.part} of {kind} {number}, whose sides are {sides}")
        state = state_of(found, sides)
        counts[state.partition(" (")[0]] += 1
        lines.append(f"| {number} |{row[2]}| {'<br>'.join(shown_by(found, sides)) or '–'} | {state} |")
    if unknown:
        raise ValueError(f"no {kind} has the numbers {sorted(unknown)}")
    states = ", ".join(f"{counts[state]} {state}" for state in (*WAYS, PART, OPEN) if counts[state])
    return COUNTS.sub(f"**Of {counts.total()} {kind}s: {states}.**", "\n".join(lines) + "\n", count=1)


def stale_pages(proofs: Iterable[Proof]) -> dict[Path, str]:
    """The pages whose tables differ from the tests, with their new text."""
    by_kind: dict[str, dict[int, list[Proof]]] = {kind: defaultdict(list) for kind in PAGES}
    for proof in proofs:
        by_kind[proof.kind][proof.number].append(proof)
    pages = {page: (page.read_text(), filled(kind, page.read_text(), by_kind[kind])) for kind, page in PAGES.items()}
    return {page: after for page, (before, after) in pages.items() if after != before}


def collected() -> list[Any]:
    """All tests that pytest finds."""
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
    main()
