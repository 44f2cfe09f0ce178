"""The state of a registry: what its records say, in their order. Only ``replay`` changes it."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from odradek.schemas.subjects import names
from odradek.schemas.subjects.records import (
    CLEAR_SUBJECT,
    CONFIG,
    CONTEXT,
    DELETE_SUBJECT,
    MODE,
    NOOP,
    SCHEMA,
    RegistryKey,
    RegistryRecord,
    used_ids,
    with_used_ids,
)

DEFAULT_LEVEL = "BACKWARD"
DEFAULT_MODE = "READWRITE"


class SchemaReference(NamedTuple):
    """A schema that another one uses by ``name``."""

    name: str
    subject: str
    version: int

    def as_json(self) -> dict[str, object]:
        return self._asdict()


@dataclass(frozen=True)
class SchemaContent:
    """What makes a schema the same schema: its text, and what belongs to it.

    ``metadata``, ``rule_set``: JSON, or None."""

    language: str
    text: str
    references: tuple[SchemaReference, ...] = ()
    metadata: Mapping[str, Any] | None = None
    rule_set: Mapping[str, Any] | None = None

    @cached_property
    def digest(self) -> bytes:
        """Confluent's MD5 of a schema, by which it finds the id of a text."""
        md5 = hashlib.md5(self.text.encode(), usedforsecurity=False)
        for one in self.references:
            md5.update(one.name.encode() + one.subject.encode() + one.version.to_bytes(4, "big", signed=True))
        if self.metadata is not None:
            md5.update(b"\x01" + "".join(_metadata_texts(self.metadata)).encode())
        if self.rule_set is not None:
            md5.update(b"\x01" + "".join(_rule_texts(self.rule_set)).encode())
        return md5.digest()

    @property
    def guid(self) -> str:
        """The digest as a UUID: the same in every registry."""
        text = self.digest.hex()
        return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


@dataclass(frozen=True)
class SchemaVersion:
    """A version of a subject. ``timestamp``: of its record, in ms. ``is_deleted``: softly, so its id stays known."""

    subject: str
    version: int
    id: int
    content: SchemaContent
    is_deleted: bool = False
    timestamp: int = -1
    digest: bytes = b""

    @property
    def key(self) -> RegistryKey:
        return RegistryKey(SCHEMA, self.subject, self.version)

    @property
    def identity(self) -> bytes:
        return self.digest or self.content.digest

    @property
    def shown(self) -> str:
        """The version's key as Confluent's messages have it."""
        return f"{{magic=1,keytype=SCHEMA,subject={self.subject},version={self.version}}}"

    def value(self, *, is_deleted: bool | None = None) -> dict[str, Any]:
        """Returns the value of the version's record."""
        content = self.content
        fields = {
            "subject": self.subject, "version": self.version, "id": self.id,
            "md5": base64.b64encode(self.digest).decode() if self.digest else None,
            "schemaType": content.language, "references": [one.as_json() for one in content.references] or None,
            "metadata": content.metadata, "ruleSet": content.rule_set, "schema": content.text,
            "deleted": self.is_deleted if is_deleted is None else is_deleted,
        }  # fmt: skip
        return {name: value for name, value in fields.items() if value is not None}


class SubjectState:
    """The subjects of a registry. A subject is a text as ``names.plain`` returns it."""

    def __init__(self) -> None:
        self._versions: dict[str, dict[int, SchemaVersion]] = {}
        self._configs: dict[str | None, dict[str, object]] = {}
        self._modes: dict[str | None, str] = {}
        self._contexts: set[str] = set()
        self._ids: dict[tuple[str, int], dict[str, int]] = {}
        self._by_digest: dict[tuple[str, bytes], int] = {}
        self._newest_ids: dict[str, int] = {}
        self.refused = 0
        """The number of records that named an id of another schema. They changed nothing."""

    # --- changes ----------------------------------------------------------------------------------------------

    def replay(self, record: RegistryRecord, timestamp: int = -1) -> None:
        """Applies a record of the log. ``timestamp``: in ms."""
        key, value = record
        if key.kind == SCHEMA:
            assert key.subject is not None
            assert key.version is not None
            if value is None:
                self._forget(key.subject, key.version)
            else:
                self._store(_version(key, value, timestamp))
        elif key.kind == CONFIG:
            _set_or_remove(self._configs, key.subject, None if value is None else dict(value))
        elif key.kind == MODE:
            _set_or_remove(self._modes, key.subject, None if value is None else value.get("mode"))
        elif key.kind == CONTEXT and key.subject is not None:
            (self._contexts.discard if value is None else self._contexts.add)(key.subject)
        elif key.kind == NOOP:
            for context, newest in used_ids(value).items():
                self._newest_ids[context] = max(self._newest_ids.get(context, 0), newest)
        elif key.kind == DELETE_SUBJECT and value is not None:
            self._delete_softly(str(value.get("subject")), int(value.get("version", 0)))
        elif key.kind == CLEAR_SUBJECT and value is not None:
            subject = str(value.get("subject"))
            for one in [one for one in self.of_subject(subject) if one.is_deleted]:
                self._forget(one.subject, one.version)

    def _store(self, one: SchemaVersion) -> None:
        context = names.split(one.subject).context
        users = self._ids.get((context, one.id), {})
        for subject, version in users.items():
            if self._versions[subject][version].content.text != one.content.text:
                self.refused += 1
                return
        self._forget(one.subject, one.version, is_replaced=True)
        self._versions.setdefault(one.subject, {})[one.version] = one
        self._ids.setdefault((context, one.id), {})[one.subject] = one.version
        self._by_digest[context, one.identity] = one.id
        self._newest_ids[context] = max(self._newest_ids.get(context, 0), one.id)

    def _forget(self, subject: str, version: int, *, is_replaced: bool = False) -> None:
        """Removes a version. The next id stays above its id: another schema never gets it."""
        versions = self._versions.get(subject, {})
        one = versions.pop(version, None)
        if one is None:
            return
        if not versions and not is_replaced:
            del self._versions[subject]
        context = names.split(subject).context
        users = self._ids.get((context, one.id), {})
        if users.get(subject) == version:
            del users[subject]
            older = [other.version for other in versions.values() if other.id == one.id]
            if older and not is_replaced:
                users[subject] = max(older)
        if not users:
            self._ids.pop((context, one.id), None)

    def _delete_softly(self, subject: str, last: int) -> None:
        for one in [one for one in self.of_subject(subject) if one.version <= last and not one.is_deleted]:
            changed = SchemaVersion(one.subject, one.version, one.id, one.content, True, one.timestamp, one.digest)
            self._versions[subject][one.version] = changed

    # --- look-ups ---------------------------------------------------------------------------------------------

    def subjects(self, prefix: str = names.ALL) -> list[str]:
        """The subjects with versions, deleted ones included, in order."""
        return sorted(one for one in self._versions if names.has_prefix(one, prefix))

    def of_subject(self, subject: str) -> list[SchemaVersion]:
        """The versions of a subject in order, deleted ones included."""
        return [one for _, one in sorted(self._versions.get(subject, {}).items())]

    def has(self, subject: str, *, deleted: bool) -> bool:
        """Whether the subject, or a subject of the context that it names, has versions. ``deleted``: of any kind."""
        context, name = names.split(subject)
        found = [subject] if name else [one for one in self._versions if names.split(one).context == context]
        return any(deleted or not one.is_deleted for each in found for one in self._versions.get(each, {}).values())

    def version(self, subject: str, version: int, *, deleted: bool = False) -> SchemaVersion | None:
        """A version; -1 is the newest one that is not deleted."""
        if version == -1:
            return next((one for one in reversed(self.of_subject(subject)) if not one.is_deleted), None)
        found = self._versions.get(subject, {}).get(version)
        return found if found is not None and (deleted or not found.is_deleted) else None

    def with_id(self, schema_id: int, subject: str | None = None) -> list[SchemaVersion]:
        """The versions with an id, one for each subject. ``subject``: only its version, or those of the context that it
        names; the default context's versions come first, and others only if that has none."""
        context, name = names.split(subject or "")
        found = self._of_id(context, schema_id)
        wanted = [one for one in found if one.subject == subject] if name else found
        if wanted or context != names.DEFAULT_CONTEXT or not name:
            return wanted
        others = (self._of_id(each, schema_id) for each in self.contexts()[1:])
        return next((own for each in others if (own := [one for one in each if _has_name(one, name)])), [])

    def _of_id(self, context: str, schema_id: int) -> list[SchemaVersion]:
        return [
            self._versions[subject][version] for subject, version in self._ids.get((context, schema_id), {}).items()
        ]

    def id_of(self, context: str, content: SchemaContent) -> int | None:
        """The id of a schema in a context."""
        found = self._by_digest.get((context, content.digest))
        return found if found is not None and (context, found) in self._ids else None

    def ids_of_guid(self, guid: str) -> Iterator[tuple[str, int]]:
        """The context and the id of a schema in each context."""
        try:
            digest = bytes.fromhex(guid.replace("-", ""))
        except ValueError:
            return
        for context in self.contexts():
            found = self._by_digest.get((context, digest))
            if found is not None and (context, found) in self._ids:
                yield context, found

    def next_id(self, context: str) -> int:
        """The id of the next new schema of a context: above each id that it ever had."""
        return self._newest_ids.get(context, 0) + 1

    def newest_id(self, context: str) -> int:
        return max(self._newest_ids.get(context, 0), 1)

    def newest_ids(self) -> RegistryRecord:
        """A record that keeps the newest id of each context over compaction, which removes deleted schemas."""
        return with_used_ids(self._newest_ids)

    def contexts(self) -> list[str]:
        """The contexts; the default one comes first."""
        return [names.DEFAULT_CONTEXT, *sorted(self._contexts)]

    def is_known_context(self, context: str) -> bool:
        return context == names.DEFAULT_CONTEXT or context in self._contexts

    def referrers(self, subject: str, version: int, *, deleted: bool) -> list[SchemaVersion]:
        """The versions whose schemas refer to a version. ``deleted``: deleted ones, too."""
        return [
            one
            for one in self.all_versions()
            if (deleted or not one.is_deleted)
            and any(
                ref.version == version and names.qualified(one.subject, ref.subject) == subject
                for ref in one.content.references
            )
        ]

    def all_versions(self, prefix: str = names.ALL) -> Iterable[SchemaVersion]:
        """All versions, by subject and version, deleted ones included."""
        return (one for subject in self.subjects(prefix) for one in self.of_subject(subject))

    # --- configs and modes ------------------------------------------------------------------------------------

    def config(self, subject: str | None) -> dict[str, object] | None:
        """The config of a subject, or the global one (None); None if a subject has none of its own."""
        found = self._configs.get(subject)
        if found is None:
            return {"compatibilityLevel": DEFAULT_LEVEL} if subject is None or _is_global(subject) else None
        fields = {name: value for name, value in found.items() if name != "subject"}
        return {"compatibilityLevel": DEFAULT_LEVEL} | fields

    def config_in_scope(self, subject: str | None) -> dict[str, object]:
        """The config that counts for a subject: its own, over that of its context, over the global one."""
        own = None if subject is None else self.config(subject)
        if own is not None:
            return (self.config(None) or {}) | own
        return next((found for each in _scopes(subject) if (found := self._stored(each)) is not None), _DEFAULT_CONFIG)

    def _stored(self, subject: str | None) -> dict[str, object] | None:
        return self.config(subject) if subject in self._configs else None

    def mode(self, subject: str | None) -> str | None:
        """The mode of a subject, or the global one (None); None if a subject has none of its own."""
        return self._modes.get(subject, DEFAULT_MODE if subject is None or _is_global(subject) else None)

    def mode_in_scope(self, subject: str | None) -> str:
        """The mode that counts for a subject."""
        found = (self._modes.get(each) for each in (subject, *_scopes(subject)) if each in self._modes)
        return next((one for one in found if one is not None), DEFAULT_MODE)


_DEFAULT_CONFIG: dict[str, Any] = {"compatibilityLevel": DEFAULT_LEVEL}


def _scopes(subject: str | None) -> tuple[str | None, ...]:
    """The keys under which the settings for a subject may be, besides its own."""
    context = names.split(subject or "").context
    own = None if context == names.DEFAULT_CONTEXT else names.joined(context, "")
    return own, names.joined(names.GLOBAL_CONTEXT, "")


def _is_global(subject: str) -> bool:
    return names.split(subject).context == names.GLOBAL_CONTEXT


def _has_name(one: SchemaVersion, name: str) -> bool:
    return names.split(one.subject).name == name


def _set_or_remove(where: dict[str | None, Any], subject: str | None, value: object) -> None:
    if value is None:
        where.pop(subject, None)
    else:
        where[subject] = value


def _version(key: RegistryKey, value: Mapping[str, Any], timestamp: int) -> SchemaVersion:
    assert key.subject is not None
    assert key.version is not None
    references = tuple(
        SchemaReference(str(one.get("name")), str(one.get("subject")), int(one.get("version", -1)))
        for one in value.get("references") or ()
    )
    content = SchemaContent(
        value.get("schemaType") or "AVRO", value["schema"], references, value.get("metadata"), value.get("ruleSet")
    )
    digest = base64.b64decode(value["md5"]) if value.get("md5") else b""
    is_deleted = bool(value.get("deleted"))
    return SchemaVersion(key.subject, key.version, value["id"], content, is_deleted, timestamp, digest)


def _metadata_texts(metadata: Mapping[str, Any]) -> Iterator[str]:
    for tag, patterns in sorted((metadata.get("tags") or {}).items()):
        yield from (tag, *patterns)
    for name, value in sorted((metadata.get("properties") or {}).items()):
        yield from (name, str(value))
    yield from sorted(metadata.get("sensitive") or ())


def _rule_texts(rule_set: Mapping[str, Any]) -> Iterator[str]:
    for kind in ("migrationRules", "domainRules", "encodingRules"):
        for rule in rule_set.get(kind) or ():
            yield from (str(rule[name]) for name in ("name", "doc", "kind", "mode", "type") if rule.get(name))
            yield from sorted(rule.get("tags") or ())
            for name, value in sorted((rule.get("params") or {}).items()):
                yield from (name, str(value))
            yield from (str(rule[name]) for name in ("expr", "onSuccess", "onFailure") if rule.get(name))
            if rule.get("disabled"):
                yield "\x01"
    if rule_set.get("enableAt"):
        yield str(rule_set["enableAt"])
