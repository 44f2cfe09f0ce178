"""The ``repr`` of messages, records and settings shows no secret: a log line or a failed assertion may contain it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from kio.schema.index import api_key_map
from kio.serial._introspect import classify_field

import odradek
from odradek.broker.logins.states import LoginAnswer
from odradek.broker.settings.config import BrokerConfig
from odradek.broker.settings.description import describe_broker
from odradek.catalog.credentials import AlterCredential
from odradek.catalog.image import CatalogImage
from odradek.catalog.records import ConfigRecord, UserScramCredentialRecord
from odradek.catalog.state import BROKER, TOPIC, AlterConfigs, CatalogState
from odradek.core.access.credential import Credential
from odradek.monitor.http.metrics import MetricsOptions
from odradek.monitor.http.service import ServiceOptions
from odradek.testing.security import make_security
from odradek.text.properties_file import read_properties_file
from odradek.wire import hidden_fields, schemas

CANARY = "canary-s3cr3t"
SOURCE = Path(odradek.__file__).parent
PUBLIC_BYTES = {
    # records of topics, and what group members tell each other
    "records", "metadata", "assignment", "member_metadata", "member_assignment",
    "client_host_address", "metrics",
}  # fmt: skip
SECRET_NAMES = ("password", "secret", "hmac", "auth_bytes", "salt", "credential_value", "private")


def entities(api_keys: Iterable[int], *, newest_only: bool = False) -> Iterator[tuple[int, Any]]:
    for api_key in api_keys:
        oldest, newest = schemas.known_versions(api_key)
        for version in range(newest if newest_only else oldest, newest + 1):
            for kind in schemas.Kind:
                yield api_key, schemas.message_type(api_key, version, kind)


def inner_of(entity: Any) -> Iterator[tuple[str, Any]]:
    """Yields the names of fields with the class of their elements, if they have one."""
    for field in fields(entity):
        inner = classify_field(field).type_
        yield field.name, inner if is_dataclass(inner) else None


def made(entity: Any) -> Any:
    """Returns a message with a different text in each field."""
    return entity(**{name: (made(inner),) if inner else f"{CANARY}-{name}" for name, inner in inner_of(entity)})


def leaves(entity: Any) -> Iterator[str]:
    for name, inner in inner_of(entity):
        if inner is None:
            yield name
        else:
            yield from leaves(inner)


def test_messages_show_all_fields_but_secrets() -> None:
    seen = set()
    for api_key, entity in entities([*hidden_fields.SECRETS, 17, 19, 50]):
        shown = repr(made(entity))
        secrets = hidden_fields.SECRETS.get(api_key, ())
        for name in leaves(entity):
            is_shown = f"'{CANARY}-{name}'" in shown
            assert is_shown is (name not in secrets), (entity, name)
            seen |= {(api_key, name)} if name in secrets else set()
    assert seen == {(api_key, name) for api_key, names in hidden_fields.SECRETS.items() for name in names}


def test_every_field_of_bytes_and_every_name_of_a_secret_was_judged() -> None:
    """A new API of kio with such a field needs an entry in ``hidden_fields``, or in ``PUBLIC_BYTES`` here."""
    for api_key, entity in entities(api_key_map, newest_only=True):
        known = {*hidden_fields.SECRETS.get(api_key, ()), *PUBLIC_BYTES}
        stack = [entity]
        while stack:
            for field in fields(stack.pop()):
                inner = classify_field(field).type_
                if is_dataclass(inner):
                    stack.append(inner)
                elif field.metadata["kafka_type"] in ("bytes", "records"):
                    assert field.name in known, (api_key, field.name)
                else:
                    is_suspect = any(word in field.name for word in SECRET_NAMES)
                    assert not is_suspect or field.name in known, (api_key, field.name)


def test_a_secret_that_is_absent_is_shown_as_absent() -> None:
    entity = schemas.message_type(36, 2, schemas.Kind.RESPONSE)
    message, _ = schemas.decode(
        36, 2, schemas.Kind.RESPONSE,
        schemas.encode(36, 2, schemas.Kind.RESPONSE, {"error_code": 58, "error_message": "no", "auth_bytes": b""}),
    )  # fmt: skip
    assert "auth_bytes=b''" in repr(message)
    assert repr(message).startswith(entity.__qualname__)


def things(directory: Path) -> Iterator[object]:
    name, of_broker = "listener.name.tls.ssl.keystore.password", {"ssl.keystore.password": CANARY}
    yield AlterConfigs(BROKER, "1", {name: CANARY})
    yield ConfigRecord(BROKER, "1", name, CANARY)
    shard = CatalogState(lambda data: UUID(bytes=data), (1,), UUID(int=9))
    credential = Credential(CANARY.encode(), CANARY.encode(), CANARY.encode(), 4096)
    shard.apply(0, ConfigRecord(BROKER, "1", name, CANARY))
    shard.apply(1, UserScramCredentialRecord("alice", 1, credential))
    yield CatalogImage.of(shard)
    yield AlterCredential("alice", 1, credential)
    yield UserScramCredentialRecord("alice", 1, credential)
    yield LoginAnswer(CANARY.encode())
    yield from describe_broker(BrokerConfig(of_broker), ["ssl.keystore.password"])
    file = directory / "client.properties"
    file.write_text(f"sasl.password={CANARY}\n")
    yield read_properties_file(file, "-c")
    yield ServiceOptions(MetricsOptions(), frozenset(), CANARY)


def test_our_own_classes_show_no_secret(tmp_path: Path) -> None:
    count = 0
    for thing in things(tmp_path):
        assert CANARY not in repr(thing) + str(thing) + f"{thing}", type(thing)
        count += 1
    assert count == 9


def test_the_security_of_a_test_broker_shows_no_password(tmp_path: Path) -> None:
    made = make_security("SASL_PLAINTEXT", tmp_path / "security", "localhost")
    assert made.client["sasl.password"] not in repr(made)


def test_settings_of_topics_stay_visible() -> None:
    assert repr(ConfigRecord(TOPIC, "t", "retention.ms", "5")) == "ConfigRecord(2, 't', 'retention.ms', '5')"
    assert "'retention.ms': '5'" in repr(AlterConfigs(TOPIC, "t", {"retention.ms": "5"}))
    assert repr(AlterConfigs(BROKER, "", {"b": "1", "a": None})) == "AlterConfigs(4, '', ['a', 'b'])"


# --- the source -------------------------------------------------------------------------------------------------------

WORDS = ("password", "secret", "hmac", "token", "login", "jaas", "passphrase", "credential", "cookie", "csrf", "salted")
HIDING = ("Secret", "Credential", "Login", "TokenSource", "DelegationToken", "Path", "int", "float", "bool", "None")
"""Types whose ``repr`` shows no secret."""
PUBLIC_FIELDS = {
    ("LogPosition", "token"),
    ("MonitorLine", "token_file"),
    ("MonitorLine", "change_token_file"),
    ("TopLine", "token_file"),
    ("McpLine", "token_file"),
    ("McpLine", "client_token_file"),
    ("CatalogImage", "tokens"),
}
"""A position in a log; names of files; tokens without their HMACs."""


def generated_reprs() -> Iterator[tuple[str, str, str]]:
    """Yields class, field and type of the named tuples and dataclasses that show all of their fields."""
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if "NamedTuple" in text or "@dataclass" in text else ():
            if not isinstance(node, ast.ClassDef):
                continue
            kinds = [ast.unparse(one) for one in (*node.bases, *node.decorator_list)]
            has_own = any(isinstance(one, ast.FunctionDef) and one.name == "__repr__" for one in node.body)
            if has_own or not any("NamedTuple" in kind or "dataclass" in kind for kind in kinds):
                continue
            for one in node.body:
                if isinstance(one, ast.AnnAssign) and "repr=False" not in ast.unparse(one):
                    yield node.name, ast.unparse(one.target), ast.unparse(one.annotation)


def test_no_generated_repr_has_a_field_with_the_name_of_a_secret() -> None:
    found, exceptions = [], set()
    for owner, name, annotation in generated_reprs():
        types = {part.strip() for part in annotation.split("|")}
        if (owner, name) in PUBLIC_FIELDS:
            exceptions.add((owner, name))
        elif any(word in name for word in WORDS) and not types <= set(HIDING):
            found.append(f"{owner}.{name}: {annotation}")
    assert found == []
    assert exceptions == PUBLIC_FIELDS
