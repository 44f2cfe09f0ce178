"""The style rules of the project as tests: sizes, names, and the modules that state machines must not use."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from scripts.import_contracts import IMPURE, PURE

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCE = ROOT / "src" / "odradek"
MODULES = sorted((ROOT / "src").rglob("*.py"))
EVERYTHING = [*MODULES, *sorted((ROOT / "tests").rglob("*.py")), *sorted((ROOT / "bench").rglob("*.py"))]
MODULE_LINES, TEST_MODULE_LINES = 600, 800
ROOM_MODULES = 15
"""The modules of a folder under ``src``, without ``__init__``: a reader sees them in one look."""
API = re.compile(r"k\d\d_")
"""Handlers of one API each. ``broker/handlers`` has as many of them as Kafka has APIs, so they do not count."""
FUNCTION_LINES, TEST_FUNCTION_LINES = 60, 70
PARAMETERS = 8
KERNEL = (
    "a numba kernel: it takes flat arrays, no objects, and a call in its loop would cost more than the rest of the work"
)
COMMAND = "a command of typer: one parameter for each option"
LARGE = {
    "batches/columns/record_columns.py": (KERNEL, "_walk", "_copy_headers"),
    "client/producer/columns.py": (KERNEL, "_measure", "_write"),
    "history/records/decode_kernel.py": (KERNEL, "_value", "_row", "_parse", "_find_not_ascii"),
    "history/windows/window_kernels.py": (KERNEL, "_make_room", "store", "gather"),
    "monitor/move_kernels.py": (KERNEL, "choose"),
    "pipelines/decoders/avro_columns.py": (KERNEL, "_read_one", "read_columns"),
    "pipelines/decoders/json_columns.py": (KERNEL, "_read_one", "_refuse", "read_columns"),
    "storage/cleaning/columns.py": (KERNEL, "_map", "_choose", "_filter"),
    "batches/record_validation.py": ("one loop over the bytes of all records", "_one_by_one"),
    "cli/broker/command.py": (COMMAND, "serve"),
    "cli/cluster/topics.py": (COMMAND, "create", "describe", "elect"),
    "cli/cluster/transactions.py": (COMMAND, "abort", "find_hanging"),
    "batches/encode.py": ("the fields of a batch's header", "encode_batch"),
}
"""Functions under ``src`` above the limits, by file, each with the reason. A new entry needs a reason."""
BANNED_NAMES = re.compile(r"Manager|Utils|Helper|Impl(?![a-z])")
BANNED_MODULES = re.compile(r"(^|_)(manager|utils?|helpers?|impl|misc|common)(_|$)")
PRIVATE_WORDS = re.compile(
    r"(?i)\b(anew|nobody|shall|lest|told|whoever|wherever|in vain|reigns?|hence|thereof|is none of|are none of)\b"
)
"""Old-fashioned words that make a text hard to read. Texts of Apache Kafka may contain them."""
PARTICIPLE = re.compile(r"(^|_)\w+ing$")
NOUNS_IN_ING = {"testing", "staging"}
SAME_NAME = {
    "Admin": "odradek.aio has the asynchronous class: users choose by the import",
    "Consumer": "the same reason as for Admin",
    "Producer": "the same reason as for Admin",
    "Cluster": "odradek.Cluster has processes, the client's class connections: users see only the first",
    "Node": "the client's class is a row of its metadata, the broker's class a process: users see only the first",
    "DefaultSource": "Spark looks for this name in each package that it discovers",
}
"""Names that two classes under ``src`` have, each with the reason. Every other class name is unique."""
SAME_CONSTANT = {
    "AT_ONCE": "each handler and runtime has its own limit for work without steps",
    "BROKER": "the resource type in requests; the client cannot import the broker's catalogue",
    "DELETE": "the operation of IncrementalAlterConfigs; the client cannot import the broker's catalogue",
    "SET": "the same reason as for DELETE",
    "DRAIN_S": "the end of the broker, and of Spark's progress reports",
    "LONG_MASK": "arithmetic on 63 bits",
    "MAX_INT": "Java's largest int",
    "MAX_DEPTH": "JSON, Avro and patterns are different languages",
    "PATIENCE": "a number of checks, of different intervals: of the heap, of the garbage",
    "POLL_S": "polls of different programs",
    "STEP_PARTITIONS": "a partition costs differently in each request",
    "TOPIC": "a resource type; and the type of a record of the metadata log",
    "VERSION": "the version of a file's format: the demo's, the snapshot of producers",
    "GROUP": "a type of keys, of resources, of records",
    "SMALL_BYTES": "each module's limit for its short way",
}
"""Constants that several modules under ``src`` give one name and one value, each with the reason."""
CONSTANTS_OF_APIS = {
    "LISTENERS",
    "VERSIONS",
    "IS_FREQUENT",
    "ADVERTISED_OLDEST",
    "REPLIES_TO_ANY_VERSION",
    "KEEPS_REQUESTS",
}
"""The router reads these names from each handler."""
UNFINISHED = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|X" + r"XX|HA" + r"CK)\b")
CALLS_ITSELF_PURE = re.compile(r"\b[Pp]ure\b(?! Python)|\b[Nn]o (?:clock|socket|I/O)\b")
"""Marks a module as pure, if its docstring matches."""
FORBIDDEN = set(IMPURE)
NAMED_TUPLE = {"_replace", "_asdict", "_make", "_fields"}
"""The names that begin with an underscore and are the interface of a named tuple."""
PRIVATE_ELSEWHERE = {"_jvm"}
"""Private names of Spark's objects that a class of this project has, too."""
SHARE_PRIVATE_NAMES = {
    "src/odradek/pipelines/decoders/avro_columns.py": "its kernels are in several files",
    "src/odradek/pipelines/decoders/json_columns.py": "the same reason as for avro_columns",
}
"""Modules that import private names of modules in their own package, each with the reason."""
SHARED_WITH_SUBCLASSES = re.compile(r"# Subclasses use ([\w,# ]+)\.")
"""The comment in a base class that lists the private names which subclasses in other modules use."""
LOCKS = {"client/group/subscription.py": {"threading.Lock", "os.register_at_fork"}}
"""Pure modules that two threads change: they use a lock, and a hook that creates a new lock after a fork."""


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def nodes_of(tree: ast.Module) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree))


@pytest.fixture(scope="module", autouse=True)
def _without_trees_afterwards() -> Iterator[None]:
    """Frees the syntax trees after the tests: they take more than 100 MB."""
    yield
    tree_of.cache_clear()
    nodes_of.cache_clear()


def functions(nodes: Iterable[ast.AST]) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def state_machine_modules() -> list[Path]:
    found = {path for path in MODULES if CALLS_ITSELF_PURE.search(ast.get_docstring(tree_of(path)) or "")}
    for package in PURE:
        place = SOURCE / package
        found |= set(place.rglob("*.py")) if place.is_dir() else {place.with_suffix(".py")}
    return sorted(found)


def offenders(paths: list[Path], found_in: Callable[[ast.Module], Iterable[object]]) -> dict[str, list[object]]:
    """File -> its offenders, only for files that have some."""
    found = {name_of(path): list(found_in(tree_of(path))) for path in paths}
    return {name: what for name, what in found.items() if what}


def imports_of(path: Path, modules: dict[str, Path]) -> set[str]:
    """The modules of this project that a module imports, also within functions."""
    found = set()
    for node in nodes_of(tree_of(path)):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in modules else node.module for name in names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & modules.keys()


def import_cycles(imports: dict[str, set[str]]) -> list[set[str]]:
    """The import cycles: sets of modules that reach each other."""

    def reachable(start: str) -> set[str]:
        seen: set[str] = set()
        left = list(imports[start])
        while left:
            name = left.pop()
            if name not in seen:
                seen.add(name)
                left += imports[name]
        return seen

    reach = {name: reachable(name) for name in imports}
    found: list[set[str]] = []
    for name in sorted(imports):
        cycle = {other for other in reach[name] if name in reach[other]}
        if cycle and cycle not in found:
            found.append(cycle)
    return found


def test_no_modules_import_each_other() -> None:
    """Imports only for types count, too: a reader of one module would have to know the other modules."""
    modules = {".".join(path.relative_to(SOURCE.parent).with_suffix("").parts): path for path in SOURCE.rglob("*.py")}
    modules = {name.removesuffix(".__init__"): path for name, path in modules.items()}
    imports = {name: imports_of(path, modules) - {name} for name, path in modules.items()}
    assert [sorted(cycle) for cycle in import_cycles(imports)] == []


def test_modules_have_a_limited_number_of_lines() -> None:
    sizes = {name_of(path): len(path.read_text().splitlines()) for path in EVERYTHING}
    assert {
        name: size
        for name, size in sizes.items()
        if size > (MODULE_LINES if name.startswith("src/") else TEST_MODULE_LINES)
    } == {}


def room_sizes(modules: Iterable[str]) -> dict[str, int]:
    """Folder -> modules. ``modules``: paths below ``src/odradek``."""
    counted = [name for name in map(Path, modules) if name.name != "__init__.py" and not API.match(name.name)]
    return Counter(name.parent.as_posix() for name in counted)


def test_rooms_have_a_limited_number_of_modules() -> None:
    sizes = room_sizes(path.relative_to(SOURCE).as_posix() for path in MODULES if path.is_relative_to(SOURCE))
    assert {room: size for room, size in sizes.items() if size > ROOM_MODULES} == {}


def test_a_room_of_too_many_modules_is_found() -> None:
    names = [f"broker/room/part_{number}.py" for number in range(ROOM_MODULES + 1)]
    apis = [f"broker/handlers/k{number}_name.py" for number in range(10, 90)]
    inner = "broker/room/inner/part.py"
    sizes = room_sizes([*names, "broker/room/__init__.py", *apis, "broker/handlers/api.py", inner])
    assert sizes == {"broker/room": ROOM_MODULES + 1, "broker/handlers": 1, "broker/room/inner": 1}


def lines_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def parameters_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    given = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
    return sum(argument.arg not in ("self", "cls") for argument in given)


def has_long_statement(text: str) -> bool:
    """Returns whether so many lines are between two lines that begin in the first column, as those of statements do."""
    starts = [number for number, line in enumerate(text.splitlines()) if line[:1] not in ("", " ", ")", "]", "}")]
    return any(after - before > TEST_FUNCTION_LINES for before, after in pairwise([*starts, text.count("\n")]))


def test_functions_outside_src_fit_on_a_screen() -> None:
    def long(tree: ast.Module) -> Iterator[object]:
        return (node.name for node in functions(ast.walk(tree)) if lines_of(node) > TEST_FUNCTION_LINES)

    # Only this test parses these files, so their trees are not cached. A file with short top-level statements needs
    # no syntax tree.
    texts = {path: path.read_text() for path in EVERYTHING if path not in MODULES}
    found = {name_of(path): list(long(ast.parse(text))) for path, text in texts.items() if has_long_statement(text)}
    assert {name: what for name, what in found.items() if what} == {}


def test_functions_are_short_and_take_few_parameters() -> None:
    def large(tree: ast.Module) -> Iterator[object]:
        return (
            node.name
            for node in functions(nodes_of(tree))
            if lines_of(node) > FUNCTION_LINES or parameters_of(node) > PARAMETERS
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
        for node in nodes_of(tree):
            if isinstance(node, ast.Raise) and node.exc is not None and "NotImplemented" in ast.unparse(node.exc):
                yield node.lineno

    assert offenders(MODULES, stubs) == {}


def test_names_are_not_vague() -> None:
    assert [name_of(path) for path in MODULES if BANNED_MODULES.search(path.stem)] == []

    def vague(tree: ast.Module) -> Iterator[object]:
        for node in nodes_of(tree):
            if isinstance(node, ast.ClassDef) and BANNED_NAMES.search(node.name):
                yield node.name

    assert offenders(MODULES, vague) == {}


def private_words(paths: Iterable[Path]) -> list[str]:
    return [
        f"{name_of(path)}:{number}: {line.strip()}"
        for path in sorted(paths)
        if path.name != Path(__file__).name
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if PRIVATE_WORDS.search(line)
    ]


def test_sentences_have_no_old_fashioned_words() -> None:
    code = (path for name in ("src", "tests", "bench", "scripts") for path in (ROOT / name).rglob("*.py"))
    pages = (path for name in ("docs", "tests") for path in (ROOT / name).rglob("*.md"))
    assert private_words([*code, *pages, *ROOT.glob("*.md")]) == []


def test_modules_are_nouns() -> None:
    found = {path.stem for path in MODULES if PARTICIPLE.search(path.stem)}
    assert found <= NOUNS_IN_ING


def with_plurals(names: Iterable[str]) -> list[str]:
    """The names that also stand there in the plural."""
    known = set(names)
    return sorted(name for name in known if f"{name}s" in known)


def test_no_two_modules_of_a_folder_differ_by_a_plural_only() -> None:
    """A reader cannot tell ``listener`` from ``listeners``: one of them gets a noun that says the difference."""
    folders: dict[Path, list[str]] = {}
    for path in MODULES:
        named = path.parent if path.name == "__init__.py" else path
        folders.setdefault(named.parent, []).append(named.stem)
    assert {str(folder): found for folder, names in folders.items() if (found := with_plurals(names))} == {}
    assert with_plurals(["listener", "listeners", "listener_settings", "class", "roles"]) == ["listener"]


def test_modules_of_tests_have_names_of_their_own() -> None:
    """pytest imports a module that is in no package by its name alone: a second one of that name ends the collection of
    all tests."""
    homes: dict[str, list[str]] = {}
    for path in (ROOT / "tests").rglob("*.py"):
        if not (path.parent / "__init__.py").exists() and path.name != "conftest.py":
            homes.setdefault(path.name, []).append(str(path.relative_to(ROOT)))
    assert [places for name, places in homes.items() if name.startswith("test_") and len(places) > 1] == []


def test_class_names_are_unique() -> None:
    """A search for a name finds every class, so a Protocol and a class in a function count, too."""
    homes: dict[str, list[str]] = {}
    for path in MODULES:
        for node in nodes_of(tree_of(path)):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(name_of(path))
    shared = {name: places for name, places in homes.items() if len(places) > 1}
    assert {name: places for name, places in shared.items() if name not in SAME_NAME} == {}
    assert {name: len(places) for name, places in shared.items()} == dict.fromkeys(SAME_NAME, 2)


def constants_of(tree: ast.Module) -> Iterator[tuple[str, object]]:
    """The literals and patterns that a module names, without leading underscores. In ``A, B = 0, 1`` both count."""
    for node in tree.body:
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            is_tuple = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
            pairs = zip(target.elts, node.value.elts, strict=True) if is_tuple else [(target, node.value)]
            for name, value in pairs:
                known = value_of(value)
                if isinstance(name, ast.Name) and name.id.strip("_").isupper() and known is not None:
                    yield name.id.strip("_"), known


def value_of(node: ast.expr) -> object:
    """The value of an expression of numbers, a string, a tuple or a set of them, or a compiled pattern; otherwise
    None."""
    if isinstance(node, ast.Constant):
        return None if isinstance(node.value, bool) else node.value
    if isinstance(node, ast.Tuple | ast.Set):
        parts = [value_of(part) for part in node.elts]
        kept = sorted(parts, key=repr) if isinstance(node, ast.Set) else parts
        return None if None in parts or not parts else (type(node), *kept)
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("frozenset", "re.compile"):
        parts = [value_of(part) for part in node.args]
        return None if None in parts or not parts else (ast.unparse(node.func), *parts)
    parts = (ast.BinOp, ast.UnaryOp, ast.Constant, ast.operator, ast.unaryop)
    if isinstance(node, ast.BinOp | ast.UnaryOp) and all(isinstance(part, parts) for part in ast.walk(node)):
        return eval(compile(ast.Expression(node), "", "eval"))  # only operators and constants
    return None


def shared_constants(trees: Mapping[str, ast.Module]) -> dict[str, list[str]]:
    """Name -> modules, where several modules give it the same number or string."""
    homes: dict[tuple[str, object], list[str]] = {}
    for module, tree in trees.items():
        for name, value in constants_of(tree):
            homes.setdefault((name, value), []).append(module)
    return {name: modules for (name, _), modules in homes.items() if len(modules) > 1}


def test_constants_have_one_home() -> None:
    shared = shared_constants({name_of(path): tree_of(path) for path in MODULES})
    assert {
        name: homes for name, homes in shared.items() if name not in SAME_CONSTANT | dict.fromkeys(CONSTANTS_OF_APIS)
    } == {}
    assert SAME_CONSTANT.keys() - shared.keys() == set(), "no longer shared"


def test_shared_constants_are_found() -> None:
    sources = {"a": "X = 1 << 3\n_Y = 'text'\nA, B = 0, -1", "b": "_X = 9\nY = 'text'\nB = -1\nZ = 'a'", "c": "Z = 'b'"}
    found = shared_constants({name: ast.parse(source) for name, source in sources.items()})
    assert found == {"B": ["a", "b"], "Y": ["a", "b"]}
    texts = ("T = ('a', 1)\nS = frozenset({'a', 'b'})\nP = re.compile('x+')\nQ = frozenset(T)", "T = ('b', 1)\n_S = "
             "frozenset({'a', 'b'})\n_P = re.compile('x+')\nQ = frozenset(T)")  # fmt: skip
    assert shared_constants(dict(zip("ab", map(ast.parse, texts), strict=True))) == {"S": ["a", "b"], "P": ["a", "b"]}


def members_of(path: Path, name: str) -> set[str]:
    """The methods of a class, and the attributes that it sets."""
    (found,) = (node for node in nodes_of(tree_of(path)) if isinstance(node, ast.ClassDef) and node.name == name)
    sets = (node for node in ast.walk(found) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store))
    return {node.name for node in functions(ast.walk(found))} | {node.attr for node in sets}


def test_the_architecture_names_existing_members() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    (contract,) = re.findall(r"^\*\*Log\*\* .*?\n\n", page, re.DOTALL | re.MULTILINE)
    storage = SOURCE / "storage"
    log = members_of(storage / "log.py", "Log") | members_of(storage / "log_removals.py", "LogRemovals")
    named = set(re.findall(r"`([a-z_]+)`", contract))
    assert {"append", "read", "roll", "close"} <= named
    assert named - log == set()
    assert set(re.findall(r"`Log\.(\w+)", page)) - log == set()
    module = SOURCE / "broker" / "partitions" / "partition.py"
    assert set(re.findall(r"`Partition\.(\w+)", page)) - members_of(module, "Partition") == set()


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_" and name not in NAMED_TUPLE


def private_members(tree: ast.Module) -> set[str]:
    """The private names that a module gives its classes' objects: methods, fields, and what a method sets on itself."""
    found = set()
    for node in nodes_of(tree):
        if isinstance(node, ast.ClassDef):
            found |= {step.name for step in functions(node.body)}
            fields = (step.target for step in node.body if isinstance(step, ast.AnnAssign))
            plain = (target for step in node.body if isinstance(step, ast.Assign) for target in step.targets)
            found |= {target.id for target in (*fields, *plain) if isinstance(target, ast.Name)}
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_own(node):
            found.add(node.attr)
    return {name for name in found if is_private(name)}


def is_own(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")


def private_names_of_others(tree: ast.Module, members: set[str]) -> Iterator[object]:
    """The private names that a module imports from this project, or reads of other modules' objects. ``members``: the
    private names of all classes of the project; another package's names are that package's matter."""
    others = members - private_members(tree) - PRIVATE_ELSEWHERE
    for node in nodes_of(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "odradek":
            yield from (f"{node.module}.{alias.name}" for alias in node.names if is_private(alias.name))
        elif isinstance(node, ast.Attribute) and node.attr in others and not is_own(node):
            yield f"line {node.lineno}: {ast.unparse(node)}"


def test_modules_use_only_their_own_private_names() -> None:
    members = {name for path in MODULES for name in private_members(tree_of(path))}
    found = offenders(MODULES, lambda tree: private_names_of_others(tree, members))
    assert {name: what for name, what in found.items() if name not in SHARE_PRIVATE_NAMES} == {}
    assert SHARE_PRIVATE_NAMES.keys() <= found.keys(), "no longer needed"


def test_private_names_of_others_are_found() -> None:
    source = """
from odradek.core.ids import _hidden, shown
from numba import _private
class Own:
    __slots__ = ("_kept",)
    _field: int
    def __init__(self, other):
        self._kept = other._kept, other._field, other._replace(a=1), other._unknown
        self._read = other._taken
        other._written = self._of_the_base
"""
    tree = ast.parse(source)
    assert private_members(tree) == {"_field", "_kept", "_read"}
    found = private_names_of_others(tree, {"_taken", "_written", "_kept", "_of_the_base"})
    assert set(found) == {"odradek.core.ids._hidden", "line 9: other._taken", "line 10: other._written"}


class Declared(NamedTuple):
    """A class. ``private``: the private names that it gives its objects; ``used``: those that its own methods use on
    themselves; ``shared``: those that its comment lets subclasses in other modules use."""

    module: str
    bases: tuple[str, ...]
    private: frozenset[str]
    used: frozenset[str]
    shared: frozenset[str]


def classes_of(module: str, text: str, tree: ast.Module) -> Iterator[tuple[str, Declared]]:
    lines = text.splitlines()
    for node in nodes_of(tree):
        if isinstance(node, ast.ClassDef):
            own = ast.Module(body=[node], type_ignores=[])
            attributes = [part for part in ast.walk(node) if isinstance(part, ast.Attribute)]
            used = {part.attr for part in attributes if is_own(part) or is_of_super(part)}
            body = " ".join(line.strip() for line in lines[node.lineno : node.end_lineno])
            found = SHARED_WITH_SUBCLASSES.search(body)
            yield (
                node.name,
                Declared(
                    module,
                    tuple(ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases),
                    frozenset(private_members(own)),
                    frozenset(filter(is_private, used)),
                    frozenset(re.findall(r"\b_\w+", found[1])) if found else frozenset(),
                ),
            )


def is_of_super(node: ast.Attribute) -> bool:
    called = node.value.func if isinstance(node.value, ast.Call) else None
    return isinstance(called, ast.Name) and called.id == "super"


def private_names_of_bases(classes: Iterable[tuple[str, Declared]]) -> dict[str, set[str]]:
    """Base class -> its private names that subclasses in other modules use or define again, and its comment does not
    name, or that it names and no such subclass uses."""
    homes: dict[str, list[Declared]] = {}
    for name, declared in classes:
        homes.setdefault(name, []).append(declared)

    def ancestors(declared: Declared) -> Iterator[tuple[str, Declared]]:
        for base in declared.bases:
            for found in homes.get(base, []):
                if found is not declared:
                    yield base, found
                    yield from ancestors(found)

    used: dict[str, set[str]] = {}
    for declared in (one for several in homes.values() for one in several):
        for base, found in ancestors(declared):
            if found.module != declared.module:
                used.setdefault(base, set()).update(found.private & (declared.used | declared.private))
    shared = {name: {part for one in several for part in one.shared} for name, several in homes.items()}
    differing = {name: used.get(name, set()) ^ parts for name, parts in shared.items()}
    return {name: parts for name, parts in differing.items() if parts}


def test_subclasses_use_private_names_of_other_modules_only_where_the_base_says_so() -> None:
    """Such a name is a contract between two modules. A comment in the base class lists the whole of it:
    ``# Subclasses use _a and _b.``"""
    assert (
        private_names_of_bases(
            one for path in MODULES for one in classes_of(name_of(path), path.read_text(), tree_of(path))
        )
        == {}
    )


def test_private_names_of_bases_are_found() -> None:
    base = """
class Base:
    # Subclasses use _kept, _unused,
    # and _hook.
    def __init__(self):
        self._kept = self._hidden = self._other = 1
    def _hook(self): ...
    def _inner(self): ...
    _unused = 1
class Near(Base):
    def read(self):
        return self._other
"""
    far = """
class Far(Near):
    def _hook(self): ...
    def read(self):
        return self._kept, self._hidden, self._own, super()._inner()
"""
    sources = {"a": base, "b": far}
    found = [one for name, text in sources.items() for one in classes_of(name, text, ast.parse(text))]
    assert private_names_of_bases(found) == {"Base": {"_hidden", "_inner", "_unused"}}


def test_nothing_in_src_sleeps() -> None:
    def sleeps(tree: ast.Module) -> Iterator[object]:
        for node in nodes_of(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("time.sleep", "sleep"):
                yield node.lineno

    assert offenders(MODULES, sleeps) == {}


def test_no_error_is_swallowed() -> None:
    """``except Exception: pass`` hides bugs; a narrow exception may be ignored."""

    def swallowed(tree: ast.Module) -> Iterator[object]:
        for node in nodes_of(tree):
            if isinstance(node, ast.ExceptHandler):
                broad = node.type is None or ast.unparse(node.type) in ("Exception", "BaseException")
                if broad and all(isinstance(step, ast.Pass | ast.Continue) for step in node.body):
                    yield node.lineno

    assert offenders(MODULES, swallowed) == {}


def touches(tree: ast.Module) -> Iterator[object]:
    """The uses of a clock, a socket, a file, randomness or an event loop in a module."""
    waiting = ast.AsyncFunctionDef | ast.AsyncFor | ast.AsyncWith | ast.Await
    for node in nodes_of(tree):
        if isinstance(node, ast.Import):
            yield from {alias.name.partition(".")[0] for alias in node.names} & FORBIDDEN
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            # An import of the type uuid.UUID for annotations is not a source of randomness.
            only_the_type = node.module == "uuid" and [alias.name for alias in node.names] == ["UUID"]
            yield from {node.module.partition(".")[0]} & FORBIDDEN if not only_the_type else ()
        elif isinstance(node, waiting):
            yield f"waits at line {node.lineno}"
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("open", "print", "input"):
            yield f"{ast.unparse(node.func)} at line {node.lineno}"


def test_state_machines_use_no_clock_socket_file_or_randomness() -> None:
    locking = {SOURCE / name for name in LOCKS}
    assert locking <= set(state_machine_modules())
    assert offenders([path for path in state_machine_modules() if path not in locking], touches) == {}
    for name, allowed in LOCKS.items():
        tree = tree_of(SOURCE / name)
        assert set(touches(tree)) == {use.partition(".")[0] for use in allowed}
        uses = {ast.unparse(node) for node in nodes_of(tree) if isinstance(node, ast.Attribute)}
        assert {use for use in uses if use.partition(".")[0] in FORBIDDEN} == allowed


def test_state_machines_import_only_the_core_and_the_codecs() -> None:
    """The import contract of each state machine forbids every package except its own, ``core`` and, where records are
    those of the internal topics, ``codecs``."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    packages = {f"odradek.{path.name}" for path in SOURCE.iterdir() if (path / "__init__.py").exists()}
    codecs = {"odradek.codecs"}
    machines = {"acls": set(), "catalog": set(), "groups": codecs, "transactions": codecs}
    for name, allowed in machines.items():
        machine = f"odradek.{name}"
        (contract,) = [one for one in contracts if one.get("source_modules") == [machine]]
        assert set(contract["forbidden_modules"]) == packages - {machine, "odradek.core"} - allowed


def test_every_module_has_a_docstring() -> None:
    silent = [name_of(path) for path in MODULES if path.read_text().strip() and not ast.get_docstring(tree_of(path))]
    assert silent == []


def test_the_rules_find_their_offenders() -> None:
    """These patterns match their offenders, and do not match other words."""
    assert BANNED_NAMES.search("GroupManager")
    assert BANNED_NAMES.search("LogImpl")
    assert not BANNED_NAMES.search("ImplicitDefault")
    assert BANNED_MODULES.search("file_utils")
    assert not BANNED_MODULES.search("commonplace")
    assert UNFINISHED.search("# TO" + "DO: later")
    assert len(state_machine_modules()) >= 10
    assert CALLS_ITSELF_PURE.search("Which log is next: pure functions.")
    assert CALLS_ITSELF_PURE.search("A member of a group. No socket, no clock.")
    assert not CALLS_ITSELF_PURE.search("Records one by one, in pure Python.")
    assert list(touches(ast.parse("import time, re"))) == ["time"]
    assert list(touches(ast.parse("from uuid import UUID"))) == []
    assert list(touches(ast.parse("from uuid import uuid4"))) == ["uuid"]
    assert list(touches(ast.parse("async def f(): ..."))) == ["waits at line 1"]
