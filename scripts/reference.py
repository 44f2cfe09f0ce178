"""Writes the pages of docs/reference from the code: settings of clients, brokers and topics, commands, API.

``python scripts/reference.py`` writes the pages; ``--check`` only compares. Nothing on the pages is written by hand: a
setting's meaning is its docstring or its row in the broker's tables, a command's text is its help, and a name's text is
its docstring.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import itertools
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, fields
from enum import Enum
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import typer

from odradek.broker.settings.description import DYNAMIC
from odradek.broker.settings.keys import ConfigKey, broker_keys, inert_broker_keys, topic_keys
from odradek.broker.settings.resources import group_keys
from odradek.cli import environment, main, terminal, termination
from odradek.client.config import ClientConfig, ConnectionConfig
from odradek.client.consumer.setting_types import ConsumerSettings
from odradek.client.group.config import ConsumerConfig
from odradek.client.producer.config import ProducerConfig
from odradek.client.producer.setting_types import ProducerSettings
from odradek.client.settings.java_settings import java_defaults
from odradek.client.settings.setting_types import ClientSettings, ConnectionSettings, SecuritySettings
from odradek.core.errors import OdradekError
from odradek.pipelines.option_declarations import declared_options
from odradek.zookeeper import config as zookeeper_config

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs" / "reference"
SCRIPT = "python scripts/reference.py"
NOT_IN_KAFKA = "Not in Kafka"
"""The first words in the docstring of a setting that Kafka's Java clients do not have."""

MOST_ROWS = 12
"""The largest number of rows in a section of the broker's settings. ``sections_of`` splits a larger section."""

PUBLIC: dict[str, tuple[str, ...] | None] = {
    "odradek": None,
    "odradek.client": None,
    "odradek.client.group.assignors": (
        "Assignor",
        "RangeAssignor",
        "RoundRobinAssignor",
        "StickyAssignor",
        "CooperativeStickyAssignor",
    ),
    "odradek.client.admin.offsets_topic": ("entries",),
    "odradek.codecs.consumer_protocol": ("Subscription",),
    "odradek.core.ids": ("partition_for_group",),
    "odradek.aio": None,
    "odradek.spark": None,
    "odradek.spark.session": ("session",),
    "odradek.pipelines": None,
    "odradek.pipelines.history": ("analyse_on_spark", "offset_history", "stream_offset_history"),
    "odradek.history": None,
    "odradek.history.analysis": ("Analysis", "analyse_offset_history"),
    "odradek.cli.main": ("run",),
    "odradek.testing.plugin": ("odradek_broker", "odradek_broker_config", "odradek_topic"),
}
"""The public modules. None: the names in ``__all__``; docs/api-policy.md says what a public name promises."""


class Setting(NamedTuple):
    """A client's setting. ``kafka_name`` is empty if Kafka's Java clients have no such setting."""

    name: str
    type: str
    default: str
    kafka_name: str
    meaning: str


# --- settings of clients ---------------------------------------------------------------------------------------------


def meanings(declared: Any) -> dict[str, tuple[str, str]]:
    """The settings that a class of types, or each class of a module, declares: name → (type, docstring)."""
    found: dict[str, tuple[str, str]] = {}
    for node in ast.walk(ast.parse(inspect.getsource(declared))):
        if not isinstance(node, ast.ClassDef):
            continue
        for one, text in zip(node.body, node.body[1:], strict=False):
            if not isinstance(one, ast.AnnAssign) or not isinstance(one.target, ast.Name):
                continue
            if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                found[one.target.id] = ast.unparse(one.annotation), " ".join(str(text.value.value).split())
    return found


def client_settings_of(declared: type, config: type) -> list[Setting]:
    """The settings of a class of types, in the order of ``config``, which has their defaults: what is required, its own
    settings, and those of all clients."""
    own = meanings(ConnectionSettings) | meanings(declared)
    inherited = {one.name for one in fields(ConnectionConfig)} - set(inspect.get_annotations(config))
    rows = []
    for one in sorted(fields(config), key=lambda one: (one.default is not MISSING, one.name in inherited)):
        if one.name not in own:
            continue
        kind, doc = own[one.name]
        kafka = "" if doc.startswith(NOT_IN_KAFKA) else one.name.replace("_", ".")
        rows.append(Setting(one.name, kind, _default(one), kafka, doc))
    return rows


def security_settings() -> list[Setting]:
    """The settings of TLS and SASL. Their defaults are Java's, but no mechanism is a default."""
    own = {"security_protocol": "PLAINTEXT", "sasl_mechanism": "", "enable_ssl_certificate_verification": "true"}
    known = {**java_defaults(), **own}
    return [
        Setting(name, kind, f"`{known[name]}`" if known.get(name) else "none", name.replace("_", "."), doc)
        for name, (kind, doc) in meanings(SecuritySettings).items()
    ]


def _default(one: Field[Any]) -> str:
    if one.default is MISSING:
        return "required"
    if isinstance(one.default, tuple):
        return ", ".join(f"`{part}`" for part in one.default)
    shown = one.default.__name__ if isinstance(one.default, type) else one.default
    return f"`{shown!r}`" if isinstance(shown, str) else f"`{shown:,}`" if type(shown) is int else f"`{shown}`"


def client_page() -> str:
    required = Setting(
        "bootstrap_servers", "str | list[str] | tuple[str, ...]", "required", "bootstrap.servers",
        meanings(ConsumerSettings)["bootstrap_servers"][1],
    )  # fmt: skip
    connections = client_settings_of(ClientSettings, ClientConfig)
    own = client_settings_of(ProducerSettings, ProducerConfig)
    parts = [
        "# Settings of clients",
        "Each setting is a keyword of the class, by the name of the heading, or an entry of a mapping, by that name or "
        'by Kafka\'s name with dots: `Consumer({"bootstrap.servers": "127.0.0.1:9092", "group.id": "billing"})`. '
        "Times are in milliseconds, sizes in bytes. A wrong name or value raises `ConfigError`, which names the "
        "setting and the most similar name. The classes of `odradek.aio` have the same settings.",
    ]
    classes = (
        ("Consumer", "`odradek.Consumer` and `odradek.aio.Consumer`.",
         client_settings_of(ConsumerSettings, ConsumerConfig)),
        ("Producer", "`odradek.Producer` and `odradek.aio.Producer` also take the settings of [Admin](#admin), which "
         "are those of the connections.", own),
        ("Admin", "`odradek.Admin`, `odradek.aio.Admin`, and the connections of producers.", [required, *connections]),
        ("Security", "All clients take these settings. [Security](../security.md) has an example for each protocol.",
         security_settings()),
    )  # fmt: skip
    for title, _, rows in classes:
        links = [f"[{row.name}](#{_slug(f'{title}: {row.name}')})" for row in rows]
        parts.append(f"**{title}:** {' · '.join(links)}")
    for title, text, rows in classes:
        parts += [f"## {title}", text]
        for row in rows:
            name = f"`{row.kafka_name}`" if row.kafka_name else "none"
            facts = f"Type `{row.type}`, default {row.default}. Kafka's name: {name}."
            parts += [f"### {title}: {row.name}", row.meaning, facts]
    return _page(parts)


# --- settings of brokers ---------------------------------------------------------------------------------------------


def broker_page() -> str:
    keys = broker_keys() | inert_broker_keys()
    count = len(broker_keys())
    parts = [
        "# Settings of brokers",
        f"A broker knows the {len(keys)} settings of an Apache Kafka 4.3 broker; {count} have an effect. The others "
        "are accepted, checked and described to clients, and their rows say why they have no effect. Exceptions are "
        "the settings that would protect the broker (`ssl.*`, `sasl.*`, …): a value other than Kafka's default ends "
        "the start with an error.",
        "Set them with `odradek serve --config NAME=VALUE`, with `odradek.Broker(config={…})`, and those marked "
        "*while running* also with any Kafka tool that alters settings. "
        "[Topics and groups](topic-settings.md) have settings of their own.",
        "A setting is in the section with the longest name that the setting begins with.",
    ]
    sections = list(sections_of(sorted(keys)))
    parts += _index([prefix for prefix, _ in sections])
    shown = ""
    for prefix, names in sections:
        word = prefix.partition(".")[0]
        if word != shown:
            parts.append(f"## {word}")
        if prefix != word:
            parts.append(f"### {prefix}")
        parts.append(_settings_table([keys[name] for name in names], DYNAMIC))
        shown = word
    return _page(parts)


def sections_of(names: Iterable[str], words: int = 1) -> Iterator[tuple[str, list[str]]]:
    """Groups settings by their first word. A group with too many settings is split by the first two words, and so on.

    A setting that would be alone in its group stays in the group of the shorter prefix. Yields (prefix, settings).
    """
    for prefix, group in groupby(names, key=lambda name: _first_words(name, words)):
        rows = list(group)
        if len(rows) <= MOST_ROWS:
            yield prefix, rows
            continue
        count = Counter(_first_words(name, words + 1) for name in rows)
        alone = [name for name in rows if count[_first_words(name, words + 1)] == 1]
        if alone:
            yield prefix, alone
        yield from sections_of([name for name in rows if name not in alone], words + 1)


def _first_words(name: str, count: int) -> str:
    return ".".join(name.split(".")[:count])


def _index(prefixes: Iterable[str]) -> Iterator[str]:
    """A line for each letter, with links to the sections."""
    for letter, group in groupby(prefixes, key=lambda prefix: prefix[0]):
        yield f"**{letter}:** " + " · ".join(f"[{prefix}](#{_slug(prefix)})" for prefix in group)


def topics_page() -> str:
    topics, groups = sorted(topic_keys().values()), sorted(group_keys().values())
    return _page([
        "# Settings of topics and groups",
        f"**Topics:** {_row_links(topics)}",
        f"**Groups:** {_row_links(groups)}",
        "## Settings of topics",
        "For `odradek topics create --config`, `odradek topics alter --config`, or any Kafka tool. A topic that does "
        "not set a value takes it from the [broker's settings](broker-settings.md) in the column *else*.",
        _topics_table(topics),
        "## Settings of groups",
        "Set by `kafka-configs --entity-type groups` and `Admin` clients. Only settings of KIP-848 groups "
        "have an effect.",
        _topics_table(groups),
    ])  # fmt: skip


def _row_links(keys: Iterable[ConfigKey]) -> str:
    return " · ".join(f"[{key.name}](#{key.name})" for key in keys)


def _settings_table(keys: Iterable[ConfigKey], dynamic: frozenset[str]) -> str:
    rows = ["| setting | value | meaning |", "| --- | --- | --- |"]
    for key in keys:
        running = "; while running" if key.name in dynamic else ""
        rows.append(f"| {_anchor(key)} | {_value(key)}{running} | {_meaning(key)} |")
    return "\n".join(rows)


def _topics_table(keys: Iterable[ConfigKey]) -> str:
    rows = ["| setting | value | else | meaning |", "| --- | --- | --- | --- |"]
    for key in keys:
        fallbacks = ", ".join(f"`{name}`" for name in key.falls_back) or "–"
        rows.append(f"| {_anchor(key)} | {_value(key)} | {fallbacks} | {_meaning(key)} |")
    return "\n".join(rows)


def _anchor(key: ConfigKey) -> str:
    return f'<span id="{key.name}">`{key.name}`</span>'


def _value(key: ConfigKey) -> str:
    default = "no default" if key.default is None else f"default `{key.default}`" if key.default else "default empty"
    limits = key.limits.removeprefix("in ").removeprefix("list ").replace(",", ", ").replace("..", " … ").strip()
    return f"{key.type.name.lower()}, {default}" + (f"; allowed: {limits}" if limits else "")


def _meaning(key: ConfigKey) -> str:
    own = "" if key.doc == key.inert else f"{key.doc} "
    return _cell(f"{own}**No effect:** {key.inert}" if key.inert else key.doc)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("__", "\\_\\_").strip() or "–"


# --- commands --------------------------------------------------------------------------------------------------------


def commands() -> Iterator[tuple[tuple[str, ...], Any]]:
    """All commands except hidden ones, each with its words. A group of commands is not a command."""
    yield from _walk(typer.main.get_command(main.app), ())


def _walk(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if not hasattr(command, "list_commands"):
        yield path, command
        return
    context = typer.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        if not found.hidden:
            yield from _walk(found, (*path, name))


def commands_page() -> str:
    parts = [
        "# Commands",
        "Each command prints this text with `--help`. Results go to standard output, and errors, one line each, to "
        "standard error.",
        "## Exit codes",
        "\n".join([
            "| code | meaning |", "| --- | --- |",
            f"| {terminal.EXIT_OK} | The work is done. `odradek serve`: the broker stopped cleanly on SIGTERM or "
            "Ctrl-C. |",
            f"| {terminal.EXIT_FAILED} | The work, or a check at its end, failed. |",
            f"| {terminal.EXIT_BAD_INPUT} | The input is wrong: an option, a file, a name that does not exist in the "
            "cluster; or a package that the command needs is not installed. Nothing was changed. |",
            f"| {termination.EXIT_INTERRUPTED} | Ctrl-C ended the command. |",
            f"| {termination.EXIT_HUNG_UP} | SIGHUP (a closed terminal) ended a command of a pipeline, or the demo. |",
        f"| {termination.EXIT_TERMINATED} | SIGTERM ended a command of a pipeline, or the demo. |",
        ]),
        "## Environment",
        _environment_table(),
        "## odradek",
        _options_table(typer.main.get_command(main.app)),
    ]  # fmt: skip
    for path, command in commands():
        usage = " ".join(["odradek", *path, *command.collect_usage_pieces(typer.Context(command))])
        parts += [
            f"## odradek {' '.join(path)}",
            f"```text\n{usage}\n```",
            _help(command.help),
            _options_table(command),
        ]
        if command.epilog:
            parts.append("```text\n" + "\n".join(_examples(command.epilog)) + "\n```")
    return _page([part for part in parts if part])


def _examples(epilog: str) -> Iterator[str]:
    """The lines of a help's end that begin a command or continue the one before."""
    continues = False
    for line in map(str.strip, epilog.replace("\b", "").splitlines()):
        if continues or line.startswith("odradek"):
            yield f"    {line}" if continues else line
            continues = line.endswith("\\")


def _help(text: str | None) -> str:
    paragraphs = (text or "").replace("\b", "").replace("\f", "").split("\n\n")
    return "\n\n".join(_wrapped(part) for part in paragraphs if part.strip())


def _wrapped(text: str) -> str:
    return _html(" ".join(text.split()))


def _html(text: str) -> str:
    """Escapes what Markdown takes for HTML, outside code."""
    return "".join(
        part if number % 2 else re.sub(r"<(?=[\w/])", "&lt;", part)
        for number, part in enumerate(re.split(r"(`[^`]*`)", text))
    )


def _options_table(command: Any) -> str:
    rows = ["| option | value | default | meaning |", "| --- | --- | --- | --- |"]
    for one in command.params:
        if getattr(one, "hidden", False) or one.name == "help":
            continue
        is_argument = one.param_type_name == "argument"
        names = one.metavar or one.name.upper() if is_argument else ", ".join([*one.opts, *one.secondary_opts])
        value = "–" if is_argument or getattr(one, "is_flag", False) else f"`{_cell_code(one.metavar)}`"
        if getattr(one, "multiple", False):
            value += ", repeatable"
        text = _cell(_wrapped(one.help or ""))
        rows.append(f"| `{_cell_code(names)}` | {value} | {_option_default(one)} | {text} |")
    return "\n".join(rows) if len(rows) > 2 else ""


def _option_default(one: Any) -> str:
    if one.required:
        variable = f" or `{one.envvar}`" if one.envvar else ""
        return f"required{variable}"
    value = one.default
    if getattr(one, "is_flag", False) or value in (None, "", (), []) or callable(value):
        return f"`{one.envvar}`" if getattr(one, "envvar", None) else "–"
    return f"`{value.value if isinstance(value, Enum) else value}`"


def _cell_code(text: str) -> str:
    return text.replace("|", "\\|")


def _environment_table() -> str:
    """The variables of the command line and of ZooKeeper: constants with a docstring."""
    rows = ["| variable | meaning |", "| --- | --- |"]
    for module in (environment, zookeeper_config):
        for one, text in itertools.pairwise(ast.parse(inspect.getsource(module)).body):
            value = one.value.value if isinstance(one, ast.Assign) and isinstance(one.value, ast.Constant) else None
            if isinstance(value, str) and re.fullmatch("_?ODRADEK_[A-Z_]+", value):
                assert isinstance(text, ast.Expr), f"{value} has no docstring"
                rows.append(f"| `{value}` | {_cell(_rst(ast.literal_eval(text.value)))} |")
    return "\n".join(rows)


# --- Python API ------------------------------------------------------------------------------------------------------


def public_names() -> Iterator[tuple[str, str, Any]]:
    """Module, name and object of each public name."""
    for module_name, names in PUBLIC.items():
        module = importlib.import_module(module_name)
        for name in module.__all__ if names is None else names:
            yield module_name, name, getattr(module, name)


def api_page() -> str:
    parts = [
        "# Python API",
        "All public names. [What public means](../api-policy.md): a change of one is announced a release before. "
        "Names that are not on this page may change at any time.",
    ]
    shown: dict[int, str] = {}
    for module, entries in groupby(public_names(), key=lambda entry: entry[0]):
        parts += [f"## {module}", _first_paragraph(inspect.getdoc(importlib.import_module(module)) or "")]
        for _, name, found in entries:
            parts.append(f"### {module}.{name.replace('__', chr(92) + '_' + chr(92) + '_')}")
            is_described = inspect.isclass(found) or inspect.isroutine(found)
            if is_described and id(found) in shown:
                parts.append(f"The same as [{shown[id(found)]}](#{_slug(shown[id(found)])}).")
                continue
            shown[id(found)] = f"{module}.{name}"
            parts += list(entry(name, found))
    return _page(parts)


def _slug(title: str) -> str:
    """The anchor of a heading, as the site makes it."""
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower())


def entry(name: str, found: Any) -> Iterator[str]:
    """The paragraphs of a name: its signature, its docstring, and its public members."""
    if hasattr(found, "_fixture_function"):
        yield "A pytest fixture. " + _rst(inspect.getdoc(found._fixture_function) or "")
    elif inspect.isclass(found):
        yield from _class_entry(name, found)
    elif inspect.isroutine(found):
        options = _options_class(found)
        yield "" if options else _signature(name, found)
        yield _rst(inspect.getdoc(found) or "")
        yield _keywords_table(found, options) if options else ""
    else:
        yield f"`{found!r}`"


def _options_class(found: Any) -> type | None:
    """The dataclass whose fields are the keywords of a function (``core/keyword_options``)."""
    inner = getattr(found, "__wrapped__", None)
    named = getattr(inner, "__annotations__", {}).get("options")
    kind = getattr(sys.modules[found.__module__], str(named), None)
    return kind if isinstance(kind, type) else None


def _keywords_table(found: Any, kind: type) -> str:
    options = declared_options(kind)
    rows = ["| keyword | type | default | meaning |", "| --- | --- | --- | --- |"]
    for name, parameter in inspect.signature(found).parameters.items():
        text = str(parameter.annotation)
        shown = _type_name(options[name].type) if name in options else text
        default = "required" if parameter.default is parameter.empty else f"`{_value_text(parameter.default)}`"
        meaning = _cell(options[name].option.help) if name in options else "–"
        rows.append(f"| `{name}` | `{_cell_code(shown)}` | {default} | {meaning} |")
    return "\n".join(rows)


def _type_name(kind: Any) -> str:
    text = kind.__name__ if isinstance(kind, type) and not hasattr(kind, "__args__") else str(kind)
    return re.sub(r"\b(?:[a-z_]\w*\.)+(?=[A-Z])", "", text)


def _value_text(value: Any) -> str:
    return "…" if inspect.isroutine(value) else repr(value)


def _class_entry(name: str, found: type) -> Iterator[str]:
    if issubclass(found, Exception):
        bases = [base.__name__ for base in found.__mro__[1:-2]]
        yield f"An error; a subclass of {', '.join(f'`{base}`' for base in bases)}."
    elif issubclass(found, Enum):
        yield "An enumeration."
    else:
        yield _signature(name, found)
    yield _rst(own_doc(found))
    for member, value in members(found):
        yield f"#### {name}.{member}"
        doc = own_doc(value.fget if isinstance(value, property) else value)
        is_value = isinstance(value, property) or not callable(getattr(value, "__func__", value))
        yield "" if is_value else _signature(member, getattr(value, "__func__", value))
        yield _rst(doc)


def members(found: type) -> list[tuple[str, Any]]:
    """The public methods and properties of a class, with those of its base classes in this project."""
    if issubclass(found, Enum):
        return []
    chosen: dict[str, Any] = {}
    for base in reversed(found.__mro__):
        if base.__module__.startswith("odradek"):
            chosen |= {name: value for name, value in vars(base).items() if not _is_of_every_error(found, name)}
    return [
        (name, value)
        for name, value in chosen.items()
        if not name.startswith("_")
        and isinstance(value, property | classmethod | staticmethod) | inspect.isfunction(value)
    ]


def _is_of_every_error(found: type, name: str) -> bool:
    return issubclass(found, OdradekError) and found is not OdradekError and name in vars(OdradekError)


def own_doc(found: Any) -> str:
    """The docstring in the source of this object; empty if there is none, or only the one that ``dataclass`` makes."""
    text = inspect.getdoc(found) or ""
    is_generated = inspect.isclass(found) and text.startswith(f"{found.__name__}(")
    return "" if is_generated or (inspect.isclass(found) and found.__doc__ is None) else text


def _signature(name: str, found: Any) -> str:
    try:
        signature = str(inspect.signature(found))
    except (TypeError, ValueError):
        return ""
    signature = re.sub(r"<object object at 0x[0-9a-f]+>|<function .*? at 0x[0-9a-f]+>|<factory>", "…", signature)
    signature = re.sub(r", \*\*others: '?Unpack\[NoOthers\]'?", "", signature)  # only for an error's text
    signature = re.sub(r"(->|:) '([^']*)'", r"\1 \2", re.sub(r"\((self|cls)(, )?", "(", signature))
    return f"```python\n{name}{signature}\n```"


def _first_paragraph(text: str) -> str:
    return _rst(text.partition("\n\n")[0])


def _rst(text: str) -> str:
    """A docstring as Markdown: ``code`` in single backticks, one line for each paragraph, lists as they are."""
    text = text.replace("``", "`")
    paragraphs = []
    for part in text.split("\n\n"):
        is_block = part.startswith("    ") or part.lstrip().startswith(("- ", "* "))
        is_session = part.lstrip().startswith(">>> ")
        if is_session:
            lines = [line.replace("# doctest: +SKIP", "").rstrip() for line in part.splitlines()]
            part = "\n".join(["```pycon", *lines, "```"])
        paragraphs.append(part if is_block or is_session else _wrapped(part))
    return "\n\n".join(paragraphs)


# --- pages -----------------------------------------------------------------------------------------------------------


def _page(parts: Iterable[str]) -> str:
    title, *rest = [part for part in parts if part]
    note = f"<!-- written by {SCRIPT}; change the code instead -->"
    return "\n\n".join([title, note, *rest]) + "\n"


WRITERS: Mapping[str, Callable[[], str]] = {
    "client-settings.md": client_page,
    "broker-settings.md": broker_page,
    "topic-settings.md": topics_page,
    "commands.md": commands_page,
    "api.md": api_page,
}


def stale_pages(*, write: bool) -> list[str]:
    """The pages that differ from the code. Writes them if ``write``."""
    stale = []
    for name, writer in WRITERS.items():
        path, wanted = PAGES / name, writer()
        if not path.exists() or path.read_text() != wanted:
            stale.append(name)
            if write:
                path.parent.mkdir(exist_ok=True)
                path.write_text(wanted)
    return stale


def run() -> int:
    is_check = "--check" in sys.argv[1:]
    stale = stale_pages(write=not is_check)
    if stale and is_check:
        print(f"docs/reference: {', '.join(stale)} out of date (run: {SCRIPT})")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(run())
