"""The house's rules as tests: sizes, names, and what the state machines may not touch."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCE = ROOT / "src" / "odradek"
MODULES = sorted((ROOT / "src").rglob("*.py"))
EVERYTHING = [*MODULES, *sorted((ROOT / "tests").rglob("*.py")), *sorted((ROOT / "bench").rglob("*.py"))]
MODULE_LINES, TEST_MODULE_LINES = 600, 800
FUNCTION_LINES, TEST_FUNCTION_LINES = 60, 70
PARAMETERS = 8
KERNEL = "a numba kernel: it takes flat arrays, no objects, and a call in its loop would cost more than all the rest"
COMMAND = "a command of typer: one parameter for each option"
LARGE = {
    "batches/record_columns.py": (KERNEL, "_walk", "_copy_headers"),
    "client/producer/columns.py": (KERNEL, "_measure", "_write"),
    "history/decode_kernel.py": (KERNEL, "_value", "_row", "_parse", "_find_foreign"),
    "pipelines/avro_columns.py": (KERNEL, "_read_one", "read_columns"),
    "pipelines/json_columns.py": (KERNEL, "_read_one", "_refuse", "read_columns"),
    "storage/clean_columns.py": (KERNEL, "_map", "_choose", "_filter"),
    "batches/record_validation.py": ("one loop over the bytes of all records", "_one_by_one"),
    "cli/main.py": (COMMAND, "consume"),
    "cli/topics.py": (COMMAND, "create"),
    "batches/encode.py": ("the fields of a batch's header", "encode_batch"),
}
"""Functions under ``src`` that are longer or have more parameters, by file, each with the reason. None may be added
without one."""
BANNED_NAMES = re.compile(r"Manager|Utils|Helper|Impl(?![a-z])")
BANNED_MODULES = re.compile(r"(^|_)(manager|utils?|helpers?|impl|misc|common)(_|$)")
PRIVATE_WORDS = re.compile(
    r"(?i)\b(anew|nobody|shall|lest|told|whoever|wherever|in vain|reigns?|hence|thereof|is none of|are none of)\b"
)
"""Words that a reader has to decode. Texts of Kafka's own may have them."""
PRIVATE_WORDS_LEFT = {"tests": 759, "bench": 154}
"""How many lines with such words are left, by folder. These numbers only fall; under ``src`` there is none."""
PARTICIPLE = re.compile(r"(^|_)\w+ing$")
NOUNS_IN_ING = {"testing", "partitioning", "staging"}
SAME_NAME = {
    "Admin": "odradek.aio has the client's, awaited: users choose by the import",
    "Consumer": "as Admin",
    "Producer": "as Admin",
    "DefaultSource": "Spark looks for this name in each package that it finds by itself",
}
"""Names that two classes under ``src`` have, each with the reason. Every other name stands for one class."""
UNFINISHED = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|X" + r"XX|HA" + r"CK)\b")
MACHINES = (
    "core", "catalog", "groups", "client/group/sticky_assignor.py", "lag/describe.py", "storage/clean_rules.py",
    "coordinator/answers.py", "coordinator/driver.py", "coordinator/loader.py", "coordinator/shard.py",
    "coordinator/shard_log.py", "coordinator/timers.py",
)  # fmt: skip
"""Rooms and modules without a clock, beside those that say so."""
CALLS_ITSELF_PURE = re.compile(r"\b[Pp]ure\b(?! Python)|\b[Nn]o (?:clock|socket|I/O)\b")
"""In the docstring of a module that the rule holds for, too."""
FORBIDDEN = {"asyncio", "time", "random", "uuid", "os", "socket", "secrets", "threading"}
LOCKS = {"client/consumer/subscription.py": {"threading.Lock", "os.register_at_fork"}}
"""Pure modules that two threads change, and what they use for that: a lock, and what makes a new one after a fork."""


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def machine_modules() -> list[Path]:
    found = {path for path in MODULES if CALLS_ITSELF_PURE.search(ast.get_docstring(tree_of(path)) or "")}
    for room in MACHINES:
        place = SOURCE / room
        found |= set(place.rglob("*.py")) if place.is_dir() else {place}
    return sorted(found)


def offenders(paths: list[Path], found_in: Callable[[ast.Module], Iterable[object]]) -> dict[str, list[object]]:
    """``file -> what was found in it``, for the files where something was."""
    found = {name_of(path): list(found_in(tree_of(path))) for path in paths}
    return {name: what for name, what in found.items() if what}


def imports_of(path: Path, modules: dict[str, Path]) -> set[str]:
    """The modules of ours that a module names in its imports, wherever these stand."""
    found = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in modules else node.module for name in names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & modules.keys()


def circles(imports: dict[str, set[str]]) -> list[set[str]]:
    """The modules that can be reached from themselves, those that reach each other together."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        left = list(imports[start])
        while left:
            name = left.pop()
            if name not in seen:
                seen.add(name)
                left += imports[name]
        return seen

    reach = {name: reached(name) for name in imports}
    found: list[set[str]] = []
    for name in sorted(imports):
        circle = {other for other in reach[name] if name in reach[other]}
        if circle and circle not in found:
            found.append(circle)
    return found


def test_no_modules_import_each_other() -> None:
    """Nor for their types alone: who reads one of them has to know the others."""
    modules = {".".join(path.relative_to(SOURCE.parent).with_suffix("").parts): path for path in SOURCE.rglob("*.py")}
    modules = {name.removesuffix(".__init__"): path for name, path in modules.items()}
    imports = {name: imports_of(path, modules) - {name} for name, path in modules.items()}
    assert [sorted(circle) for circle in circles(imports)] == []


def test_modules_fit() -> None:
    sizes = {name_of(path): len(path.read_text().splitlines()) for path in EVERYTHING}
    assert {
        name: size
        for name, size in sizes.items()
        if size > (MODULE_LINES if name.startswith("src/") else TEST_MODULE_LINES)
    } == {}


def lines_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def parameters_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    given = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
    return sum(argument.arg not in ("self", "cls") for argument in given)


def test_functions_fit_on_a_screen() -> None:
    def long(tree: ast.Module) -> Iterator[object]:
        return (node.name for node in functions(tree) if lines_of(node) > TEST_FUNCTION_LINES)

    assert offenders([path for path in EVERYTHING if path not in MODULES], long) == {}


def test_functions_are_short_and_take_few_parameters() -> None:
    def large(tree: ast.Module) -> Iterator[object]:
        return (
            node.name for node in functions(tree) if lines_of(node) > FUNCTION_LINES or parameters_of(node) > PARAMETERS
        )

    listed = {f"src/odradek/{name}": sorted(names) for name, (_, *names) in LARGE.items()}
    assert {name: sorted(map(str, found)) for name, found in offenders(MODULES, large).items()} == listed


def test_nothing_is_left_unfinished() -> None:
    marks = {
        name_of(path): line.strip()
        for path in EVERYTHING
        for line in path.read_text().splitlines()
        if UNFINISHED.search(line)
    }
    assert marks == {}

    def stubs(tree: ast.Module) -> Iterator[object]:
        for node in ast.walk(tree):
            if isinstance(node, ast.Raise) and node.exc is not None and "NotImplemented" in ast.unparse(node.exc):
                yield node.lineno

    assert offenders(MODULES, stubs) == {}


def test_names_say_what_a_thing_is() -> None:
    assert [name_of(path) for path in MODULES if BANNED_MODULES.search(path.stem)] == []

    def vague(tree: ast.Module) -> Iterator[object]:
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and BANNED_NAMES.search(node.name):
                yield node.name

    assert offenders(MODULES, vague) == {}


def private_words(folder: Path) -> list[str]:
    return [
        f"{name_of(path)}:{number}: {line.strip()}"
        for path in sorted(folder.rglob("*.py"))
        if path.name != Path(__file__).name
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if PRIVATE_WORDS.search(line)
    ]


def test_sentences_need_no_decoding() -> None:
    assert private_words(ROOT / "src") == []
    left = {name: len(private_words(ROOT / name)) for name in PRIVATE_WORDS_LEFT}
    assert all(left[name] <= most for name, most in PRIVATE_WORDS_LEFT.items()), left


def test_modules_are_nouns() -> None:
    found = {path.stem for path in MODULES if PARTICIPLE.search(path.stem)}
    assert found <= NOUNS_IN_ING


def test_a_class_name_stands_for_one_class() -> None:
    """Also where one class is a Protocol, or is defined in a function: a search for the name finds both."""
    homes: dict[str, list[str]] = {}
    for path in MODULES:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(name_of(path))
    shared = {name: places for name, places in homes.items() if len(places) > 1}
    assert {name: places for name, places in shared.items() if name not in SAME_NAME} == {}
    assert {name: len(places) for name, places in shared.items()} == dict.fromkeys(SAME_NAME, 2)


def test_nothing_sleeps() -> None:
    def sleeps(tree: ast.Module) -> Iterator[object]:
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("time.sleep", "sleep"):
                yield node.lineno

    assert offenders(MODULES, sleeps) == {}


def test_no_error_is_swallowed() -> None:
    """``except Exception: pass`` hides bugs; a narrow exception may be let pass."""

    def swallowed(tree: ast.Module) -> Iterator[object]:
        for node in ast.walk(tree):
            if isinstance(node, ast.ExceptHandler):
                broad = node.type is None or ast.unparse(node.type) in ("Exception", "BaseException")
                if broad and all(isinstance(step, ast.Pass | ast.Continue) for step in node.body):
                    yield node.lineno

    assert offenders(MODULES, swallowed) == {}


def touches(tree: ast.Module) -> Iterator[object]:
    """What ties a module to a clock, a socket, a file, randomness or an event loop."""
    waiting = ast.AsyncFunctionDef | ast.AsyncFor | ast.AsyncWith | ast.Await
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from {alias.name.partition(".")[0] for alias in node.names} & FORBIDDEN
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            # A type to annotate with (uuid.UUID) is no source of randomness.
            only_the_type = node.module == "uuid" and [alias.name for alias in node.names] == ["UUID"]
            yield from {node.module.partition(".")[0]} & FORBIDDEN if not only_the_type else ()
        elif isinstance(node, waiting):
            yield f"waits at line {node.lineno}"
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("open", "print", "input"):
            yield f"{ast.unparse(node.func)} at line {node.lineno}"


def test_state_machines_own_no_clock_socket_file_or_randomness() -> None:
    locking = {SOURCE / name for name in LOCKS}
    assert locking <= set(machine_modules())
    assert offenders([path for path in machine_modules() if path not in locking], touches) == {}
    for name, allowed in LOCKS.items():
        tree = tree_of(SOURCE / name)
        assert set(touches(tree)) == {use.partition(".")[0] for use in allowed}
        uses = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        assert {use for use in uses if use.partition(".")[0] in FORBIDDEN} == allowed


def test_state_machines_know_the_core_alone() -> None:
    """As import-linter has it: no room is missing in its contract."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (contract,) = [one for one in contracts if one["name"].startswith("state machines know the core alone")]
    machines = {"odradek.catalog", "odradek.groups"}
    rooms = {f"odradek.{path.name}" for path in SOURCE.iterdir() if (path / "__init__.py").exists()}
    assert set(contract["source_modules"]) == machines
    assert set(contract["forbidden_modules"]) == rooms - machines - {"odradek.core"}
    (layers,) = [one["layers"] for one in contracts if any("odradek.catalog" in row for row in one.get("layers", ()))]
    assert "odradek.groups | odradek.catalog | odradek.coordinator" in layers, "they do not know each other"


def test_every_module_says_what_it_is_for() -> None:
    silent = [name_of(path) for path in MODULES if path.read_text().strip() and not ast.get_docstring(tree_of(path))]
    assert silent == []


def test_the_rules_bite() -> None:
    """Each pattern catches what it is there for, and lets plain words pass."""
    assert BANNED_NAMES.search("GroupManager")
    assert BANNED_NAMES.search("LogImpl")
    assert not BANNED_NAMES.search("ImplicitDefault")
    assert BANNED_MODULES.search("file_utils")
    assert not BANNED_MODULES.search("commonplace")
    assert UNFINISHED.search("# TO" + "DO: later")
    assert len(machine_modules()) >= 10
    assert CALLS_ITSELF_PURE.search("Which log is next: pure functions.")
    assert CALLS_ITSELF_PURE.search("A member of a group. No socket, no clock.")
    assert not CALLS_ITSELF_PURE.search("Records one by one, in pure Python.")
    assert list(touches(ast.parse("import time, re"))) == ["time"]
    assert list(touches(ast.parse("from uuid import UUID"))) == []
    assert list(touches(ast.parse("from uuid import uuid4"))) == ["uuid"]
    assert list(touches(ast.parse("async def f(): ..."))) == ["waits at line 1"]
