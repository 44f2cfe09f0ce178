"""Handlers use only fields of the schemas, and only some services of the broker. Code for all requests names no single
API."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from kio.serial._introspect import classify_field

from odradek.broker.handlers import handler_files
from odradek.wire import api_keys, schemas
from odradek.wire.schemas import Kind

HANDLERS = Path(__file__).resolve().parent.parent.parent / "src" / "odradek" / "broker" / "handlers"
APIS = sorted(path.stem for path in HANDLERS.glob("k[0-9]*.py"))


# --- handlers ---------------------------------------------------------------------------------------------------


def field_names(entity: Any) -> Iterator[str]:
    for field in fields(entity):
        yield field.name
        inner = classify_field(field).type_
        if is_dataclass(inner):
            yield from field_names(inner)


def reply_fields(api_key: int) -> set[str]:
    """Every field name of an API's replies, over all versions and depths."""
    oldest, newest = schemas.known_versions(api_key)
    return {
        name
        for version in range(oldest, newest + 1)
        for name in field_names(schemas.message_type(api_key, version, Kind.RESPONSE))
    }


def mapping_keys(path: Path) -> set[str]:
    """Keys of all mappings a handler writes: literals, ``dict(key=…)`` and ``row["key"] = …``."""
    keys: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Dict):
            texts = {key.value for key in node.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)}
            if not any("." in text for text in texts):  # a table of Kafka's settings is not a reply
                keys |= texts
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "dict":
            keys |= {keyword.arg for keyword in node.keywords if keyword.arg}
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
                    keys |= {target.slice.value} if isinstance(target.slice.value, str) else set()
    return keys


@pytest.mark.parametrize("name", APIS)
def test_replies_use_only_fields_of_the_schemas(name: str) -> None:
    """The writer ignores a key that a version lacks, so the default value would replace the value of a misspelt key."""
    assert mapping_keys(HANDLERS / f"{name}.py") - reply_fields(int(name[1:3])) == set()


@pytest.mark.parametrize("name", APIS)
def test_handlers_serve_only_versions_of_the_schemas(name: str) -> None:
    key = int(name[1:3])
    ((oldest, newest),) = [api.versions for api in handler_files() if api.name == name]
    known = schemas.known_versions(key)
    assert known[0] <= oldest <= newest <= known[1]
    assert name == f"k{key:02}_{schemas.api_name(key)}"


def test_each_handler_file_is_served_and_has_a_handler() -> None:
    assert [api.name for api in handler_files()] == APIS
    for name in APIS:
        assert callable(import_module(f"odradek.broker.handlers.{name}").handle)


def test_a_misspelt_field_is_found() -> None:
    assert "partition_index" in reply_fields(8)
    assert "partition_idx" not in reply_fields(8)
    assert len(APIS) >= 20


# --- the types of messages --------------------------------------------------------------------------------------


def names_for_type_checkers(tree: ast.Module) -> dict[str, str]:
    """The names that a file imports or derives only for type checkers, with their sources."""
    origins: dict[str, str] = {}
    for block in tree.body:
        if not isinstance(block, ast.If) or ast.unparse(block.test) != "TYPE_CHECKING":
            continue
        for node in block.body:
            if isinstance(node, ast.ImportFrom):
                origins |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            elif isinstance(node, ast.ClassDef) and len(node.bases) == 1:
                module, _, base = ast.unparse(node.bases[0]).rpartition(".")
                origins[node.name] = f"{origins.get(module, module)}.{base}"
    return origins


def message_classes(source: str) -> set[str]:
    """The classes in the annotations of a handler's message."""
    tree = ast.parse(source)
    origins = names_for_type_checkers(tree)
    (handle,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "handle")
    annotation = handle.args.args[2].annotation
    names = {node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)} if annotation else {"Any"}
    return {origins.get(name, name) for name in names}


def fields_of_older_versions(name: str) -> Iterator[tuple[str, set[str]]]:
    """Fields that a handler adds to the newest classes, and the types of these fields in the older versions it
    serves."""
    ((oldest, newest),) = [api.versions for api in handler_files() if api.name == name]
    modules = [
        import_module(schemas.message_type(int(name[1:3]), version, Kind.REQUEST).__module__)
        for version in range(oldest, newest + 1)
    ]
    for node in ast.walk(ast.parse((HANDLERS / f"{name}.py").read_text())):
        if not isinstance(node, ast.ClassDef) or not hasattr(modules[-1], node.name):
            continue
        classes = [getattr(module, node.name) for module in modules if hasattr(module, node.name)]
        *older, now = ({field.name: field.type for field in fields(one)} for one in classes)
        for line in node.body:
            if isinstance(line, ast.AnnAssign) and ast.unparse(line.target) not in now:
                texts = {str(types.get(ast.unparse(line.target), "")) for types in older} - {""}
                plain = {re.sub(r"(\w+\.)+(?=\w)|<class '|'>", "", text) for text in texts}
                yield f"{ast.unparse(line.target)}: {ast.unparse(line.annotation)}", plain


def parameters_of_any_type(source: str) -> list[str]:
    return [
        f"{node.arg}: {ast.unparse(node.annotation)}"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.arg) and node.annotation is not None
        if ast.unparse(node.annotation) in ("Any", "Iterable[Any]", "Sequence[Any]")
    ]


@pytest.mark.parametrize("name", APIS)
def test_messages_have_the_type_of_the_newest_version(name: str) -> None:
    ((_, newest),) = [api.versions for api in handler_files() if api.name == name]
    newest_class = schemas.message_type(int(name[1:3]), newest, Kind.REQUEST)
    source = (HANDLERS / f"{name}.py").read_text()
    assert message_classes(source) == {f"{newest_class.__module__}.{newest_class.__name__}"}
    assert parameters_of_any_type(source) == []


@pytest.mark.parametrize("name", APIS)
def test_fields_of_older_versions_have_the_types_of_the_schemas(name: str) -> None:
    for declared, known in fields_of_older_versions(name):
        assert {declared.partition(": ")[2]} == known, declared


def test_the_fields_of_older_versions_are_found() -> None:
    assert dict(fields_of_older_versions("k08_offset_commit")) == {
        "name: TopicName": {"TopicName"},
        "retention_time: i64Timedelta": {"i64Timedelta"},
    }


def test_a_message_without_a_type_is_found() -> None:
    source = (HANDLERS / "k12_heartbeat.py").read_text()
    assert message_classes(source) == {"kio.schema.heartbeat.v4.request.HeartbeatRequest"}
    untyped = source.replace("message: HeartbeatRequest", "message: Any")
    assert message_classes(untyped) == {"Any"}
    assert parameters_of_any_type(untyped) == ["message: Any"]
    assert message_classes(source.replace("message: HeartbeatRequest", "message")) == {"Any"}
    assert message_classes(source.replace(".v4.", ".v3.")) == {"kio.schema.heartbeat.v3.request.HeartbeatRequest"}
    derived = (HANDLERS / "k10_find_coordinator.py").read_text()
    assert message_classes(derived) == {"kio.schema.find_coordinator.v6.request.FindCoordinatorRequest"}


# --- what handlers leave to the controller and its publishers ----------------------------------------------------

BROKER_ROOM = HANDLERS.parent
ASKING = [path for path in sorted(HANDLERS.glob("*.py")) if path.stem not in ("api", "middleware")]
"""The files that serve requests."""
FOLLOWING = {
    f"odradek.broker.{name}"
    for name in (
        "coordinators.group_coordinator", "coordinators.group_runtime", "limits.host_limits", "metadata.loader",
        "metadata.producer_ids", "metadata_log.snapshot", "partitions.log_cleaner", "partitions.log_directory",
        "metadata.committed_catalog", "metadata.stored_catalog", "publishers", "server",
    )
}  # fmt: skip
"""The modules that apply committed records, and the module that calls them."""


def members(module: str, protocol: str) -> set[str]:
    """The members of a Protocol, from its source code: some of them exist only for type checkers."""
    tree = ast.parse((BROKER_ROOM / f"{module}.py").read_text())
    (found,) = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == protocol)
    methods = {node.name for node in found.body if isinstance(node, ast.FunctionDef)}
    return methods | {ast.unparse(node.target) for node in found.body if isinstance(node, ast.AnnAssign)}


SERVICES = members("handlers/api", "NodeServices") | members("handlers/api", "BrokerServices")
USES = {
    "brokers": members("metadata/brokers", "Brokers"),
    "catalog": members("metadata/catalog_view", "CatalogView"),
    "controller": {"auto_create", "ensure_internal_topic", "new_topic", "update_features", "write"},
    "coordinators": {"of_key_type", "runtime"},
    "producer_ids": {"next", "ready"},
    "quorum": {"committed_offset", "epoch", "leader"},
    "role": {"check_broker_name", "has_broker_settings", "registered_brokers"},
    "quotas": {"has_quota", "most_in_window", "record", "take_back"},
    "groups": {"batch_bytes", "partitions", "partition_of", "submit", "submit_checked"},
}
"""The members of these services that handlers may use."""
ACTS = {
    "apply", "begin_epochs", "drop_topic", "forget_dropped", "initial_delta", "on_event",
    "on_metadata_update", "on_notice", "on_topics_changed", "on_topics_deleted", "open_topic", "publish",
    "reconfigure", "replay", "set_dynamic", "steps_of", "unload",
}  # fmt: skip
"""Methods that change state which follows from the catalogue. No handler uses one of these names on any object."""


def is_broker(node: ast.expr) -> bool:
    return ast.unparse(node) in ("broker", "self.broker", "self._broker")


def own_acts(source: str) -> list[str]:
    """Returns what no handler's source may have, because a publisher does it after a record is committed: an import
    of a publisher, the use of a service or of a service's member that is not allowed, a method in ``ACTS``, an
    assignment to the broker."""
    tree = ast.parse(source)
    found = []
    services = {  # names for a service, such as ``quotas = broker.quotas``
        target.id: node.value.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Attribute) and is_broker(node.value.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
            found += sorted(
                names
                & (
                    FOLLOWING
                    | {
                        "odradek.broker.metadata.committed_catalog.CommittedCatalog",
                        "odradek.broker.metadata.stored_catalog",
                    }
                )
            )
        if not isinstance(node, ast.Attribute):
            continue
        inner, text = node.value, ast.unparse(node)
        service = inner.attr if isinstance(inner, ast.Attribute) else services.get(ast.unparse(inner))
        is_unknown = is_broker(inner) and node.attr not in SERVICES
        is_other_use = service in USES and node.attr not in USES[service]
        is_set = not isinstance(node.ctx, ast.Load) and "broker." in text
        is_write = node.attr == "write" and service != "controller"
        if is_unknown or is_other_use or is_set or is_write or node.attr in ACTS:
            found.append(text)
    return found


@pytest.mark.parametrize("path", ASKING, ids=lambda path: path.stem)
def test_handlers_leave_the_effects_of_records_to_publishers(path: Path) -> None:
    assert own_acts(path.read_text()) == []


@pytest.mark.parametrize(
    "source",
    [
        "broker.directory.open_topic(topic, settings)",
        "self._broker.directory",
        "broker.quotas.replace(limits)",
        "quotas = broker.quotas\nquotas.replace(limits)",
        "broker.groups.partition_count = None",
        "broker.coordinators.stop()",
        "runtime = self.broker.groups\nruntime.load(0, partition)",
        "broker.config.set_dynamic({})",
        "broker.config.num_partitions = 3",
        "broker.catalog.apply(request)",
        "broker.catalog.commit(offset, records)",
        "broker.quorum.append(packed, 1)",
        "change.write()",
        "broker.loader.publish(delta)",
        "from odradek.broker.partitions.log_directory import LogDirectory",
        "from odradek.broker.partitions import log_cleaner",
        "from odradek.broker.metadata.stored_catalog import StoredCatalog",
    ],
)
def test_a_handler_that_applies_an_effect_itself_is_found(source: str) -> None:
    assert own_acts(source)


def test_each_service_is_used() -> None:
    """``BrokerServices`` has no member that no request needs."""
    helpers = (
        "front_end/router", "front_end/commit_fast_path", "partitions/produce_appends",
        "partitions/transaction_verification",
    )  # fmt: skip
    using = [*ASKING, *(BROKER_ROOM / f"{name}.py" for name in helpers)]
    used = {
        node.attr
        for path in using
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and is_broker(node.value)
    }
    assert {"catalog", "controller", "scheduler"} <= SERVICES
    assert SERVICES - used == set()


# --- what knows no single API -----------------------------------------------------------------------------------

GENERAL = [
    "broker/front_end/connection.py",
    "broker/front_end/router.py",
    "broker/handlers/middleware.py",
    "wire/frames.py",
]
"""These modules serve all APIs. Code for a single API belongs in its handler or in a separate module."""


def api_names() -> set[str]:
    """``OFFSET_COMMIT`` and ``OffsetCommit``, and so on. Names like ``Fetch``, of one word, are left out, because they
    also occur in other code; ``FETCH`` is included."""
    constants = {name for name, value in vars(api_keys).items() if type(value) is int}
    return constants | {"".join(map(str.capitalize, name.split("_"))) for name in constants if "_" in name}


@pytest.mark.parametrize("name", GENERAL)
def test_code_for_all_requests_names_no_single_api(name: str) -> None:
    source = HANDLERS.parent.parent.joinpath(name).read_text()
    words = set(re.findall(r"\w+", source))
    assert words & api_names() == set()
    imported = {node.module for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)}
    assert not {module for module in imported if module and re.search(r"handlers\.k\d|api_keys", module)}
    assert not [word for word in words if re.fullmatch(r"k\d\d_\w+", word)]


def test_the_name_of_an_api_in_code_for_all_requests_is_found() -> None:
    assert {"OFFSET_COMMIT", "OffsetCommit", "FETCH", "ApiVersions"} <= api_names()
