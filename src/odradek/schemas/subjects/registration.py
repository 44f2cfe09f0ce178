"""Registrations: which id and version a schema gets, or why it gets none. Nothing here changes the state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from odradek.schemas import languages
from odradek.schemas.errors import InvalidSchema
from odradek.schemas.parsed import ParsedSchema
from odradek.schemas.subjects import errors, names
from odradek.schemas.subjects.compatibility import objections
from odradek.schemas.subjects.records import CONTEXT, TENANT, RegistryKey, RegistryRecord
from odradek.schemas.subjects.state import SchemaContent, SchemaReference, SchemaVersion, SubjectState

IMPORT_MODES = ("IMPORT", "FORWARD")


@dataclass(frozen=True)
class SchemaRequest:
    """A schema as a request has it. ``id``, ``version``: only in imports; ``version`` -1 asks for the newest one."""

    content: SchemaContent
    id: int | None = None
    version: int = 0
    normalize: bool = False
    force: bool = False


class Registered(NamedTuple):
    """The outcome of a registration: the version, and the records that make it; no record if it exists already."""

    version: SchemaVersion
    records: tuple[RegistryRecord, ...] = ()


class CanonicalSchema(NamedTuple):
    """A parsed schema, and its content with the text that is stored."""

    parsed: ParsedSchema
    content: SchemaContent


def register(state: SubjectState, subject: str, request: SchemaRequest) -> Registered:
    """Returns the version under which a subject has a schema, with the records that a new one needs.

    Raises RegistryError."""
    found = look_up(state, subject, request)
    if found is not None and _is_answer(found, request):
        return Registered(found)
    _check_mode(state, subject, request)
    mode, config = state.mode_in_scope(subject), state.config_in_scope(subject)
    older = state.of_subject(subject)
    alive = [one for one in older if not one.is_deleted]
    if not request.content.text.strip():
        request = _with_text_of_newest(request, alive)
    schema = canonical(state, subject, request, is_new=request.id is None)
    number = max((one.version for one in older), default=0) + 1
    if mode not in IMPORT_MODES and not request.force:
        found_wrong = _objections(state, config, schema.parsed, alive)
        if found_wrong:
            raise errors.incompatible(subject, found_wrong)
    if request.version > 0:
        if request.version != number and mode not in IMPORT_MODES:
            raise errors.invalid_schema("Version is not one more than previous version")
        number = request.version
    context = names.split(subject).context
    schema_id = request.id if request.id is not None else state.id_of(context, schema.content)
    if schema_id is None:
        schema_id = state.next_id(context)
    _check_id(state, context, schema_id, schema.content)
    return _records(state, SchemaVersion(subject, number, schema_id, schema.content), older)


def look_up(
    state: SubjectState, subject: str, request: SchemaRequest, *, deleted: bool = False
) -> SchemaVersion | None:
    """Returns the version of a subject that has a schema; None if none has. Raises RegistryError for no schema."""
    if not request.content.text.strip():
        return None
    schema = canonical(state, subject, request, is_new=False)
    versions = [one for one in reversed(state.of_subject(subject)) if deleted or not one.is_deleted]
    if request.version == -1:
        versions = versions[:1]
    digest = schema.content.digest
    for one in versions:
        if one.identity == digest:
            return one
    return next((one for one in versions if _is_same(state, schema, one)), None)


def compatibility_objections(
    state: SubjectState, subject: str, request: SchemaRequest, older: Sequence[SchemaVersion]
) -> list[str]:
    """Returns why a schema could not follow these versions; empty if it could. Raises RegistryError."""
    if not request.content.text.strip():
        raise errors.invalid_schema("Empty schema")
    schema = canonical(state, subject, request, is_new=True)
    return _objections(state, state.config_in_scope(subject), schema.parsed, older)


def canonical(state: SubjectState, subject: str, request: SchemaRequest, *, is_new: bool) -> CanonicalSchema:
    """Parses a schema and returns it with the text that is stored. Raises RegistryError 42201."""
    content = request.content
    is_import = state.mode_in_scope(subject) in IMPORT_MODES
    is_new = is_new and state.config_in_scope(subject).get("validateNewSchemas") is not False
    references = tuple(_with_version(state, subject, one) for one in content.references)
    try:
        texts = reference_texts(state, subject, references, deleted=not is_new)
        parsed = languages.parse(content.language, content.text, texts, is_new=is_new)
    except InvalidSchema as error:
        shown = f"Invalid schema of type {content.language}, details: {error}"
        raise errors.invalid_schema(shown if content.language in languages.NAMES else str(error)) from None
    text = parsed.canonical
    if request.normalize and not is_import:
        text, references = parsed.normalized, tuple(sorted(set(references)))
    return CanonicalSchema(parsed, replace(content, text=text, references=references))


def parse_version(state: SubjectState, one: SchemaVersion) -> ParsedSchema:
    """Parses a stored version. Raises RegistryError 42201, for example after its reference is gone."""
    try:
        texts = reference_texts(state, one.subject, one.content.references, deleted=True)
        return languages.parse(one.content.language, one.content.text, texts)
    except InvalidSchema as error:
        about = f"version {one.version} of subject {one.subject}"
        raise errors.invalid_schema(f"Invalid schema of type {one.content.language}, {about}: {error}") from None


def reference_texts(
    state: SubjectState, subject: str, references: Sequence[SchemaReference], *, deleted: bool
) -> dict[str, str]:
    """Returns the texts of references by their names, each after those that it uses. Raises InvalidSchema."""
    found: dict[str, str] = {}
    _add_texts(state, subject, references, found, deleted=deleted)
    return found


def _add_texts(
    state: SubjectState, subject: str, references: Sequence[SchemaReference], found: dict[str, str], *, deleted: bool
) -> None:
    for one in references:
        if one.name in found:
            continue
        target = names.qualified(subject, one.subject)
        version = state.version(target, one.version, deleted=deleted)
        if version is None:
            raise InvalidSchema(f'No schema reference found for subject "{target}" and version {one.version}')
        _add_texts(state, target, version.content.references, found, deleted=deleted)
        found.setdefault(one.name, version.content.text)


def _with_version(state: SubjectState, subject: str, one: SchemaReference) -> SchemaReference:
    """Returns a reference with a number in place of -1, which means the newest version."""
    newest = state.version(names.qualified(subject, one.subject), -1) if one.version == -1 else None
    return one if newest is None else one._replace(version=newest.version)


def _is_answer(found: SchemaVersion, request: SchemaRequest) -> bool:
    """Whether a version that has the schema is what a registration asks for."""
    return (request.id is None or request.id == found.id) and request.version in (0, -1, found.version)


def _check_mode(state: SubjectState, subject: str, request: SchemaRequest) -> None:
    mode, context = state.mode_in_scope(subject), names.joined(names.split(subject).context, "")
    about = f"Subject {subject} in context {context}"
    if mode in ("READONLY", "READONLY_OVERRIDE"):
        raise errors.not_permitted(f"{about} is in read-only mode")
    if request.id is not None and mode not in IMPORT_MODES:
        raise errors.not_permitted(f"{about} is not in import mode")
    if request.id is None and mode != "READWRITE":
        raise errors.not_permitted(f"{about} is not in read-write mode")


def _with_text_of_newest(request: SchemaRequest, alive: Sequence[SchemaVersion]) -> SchemaRequest:
    """A request without a text gives the newest schema other metadata or rules."""
    if not alive:
        raise errors.invalid_schema("Empty schema")
    newest, given = alive[-1].content, request.content
    content = SchemaContent(newest.language, newest.text, newest.references, given.metadata, given.rule_set)
    return replace(request, content=content)


def _objections(
    state: SubjectState, config: Mapping[str, object], new: ParsedSchema, older: Sequence[SchemaVersion]
) -> list[str]:
    level = str(config.get("compatibilityLevel")).upper()
    lenient = str(config.get("compatibilityPolicy")).upper() == "LENIENT"
    if level == "NONE" or not older:
        return []
    # Only the transitive levels need the older texts.
    compared = older if level.endswith("_TRANSITIVE") else older[-1:]
    found = objections(level, new, [parse_version(state, one) for one in compared], lenient=lenient)
    is_checked = str(bool(config.get("validateFields"))).lower()
    return [*found, f"{{validateFields: '{is_checked}', compatibility: '{level}'}}"] if found else []


def _check_id(state: SubjectState, context: str, schema_id: int, content: SchemaContent) -> None:
    """Refuses an id that another schema has."""
    for one in state.with_id(schema_id, names.joined(context, "")):
        if one.identity != content.digest:
            shown = names.joined(context, "")
            text = f"Overwrite new schema with id {schema_id} in context {shown} is not permitted."
            raise errors.not_permitted(text)


def _records(state: SubjectState, new: SchemaVersion, older: Sequence[SchemaVersion]) -> Registered:
    """Returns a new version with its records: a deleted version with the same id goes."""
    records: list[RegistryRecord] = []
    context = names.split(new.subject).context
    if not state.is_known_context(context):
        records.append(RegistryRecord(RegistryKey(CONTEXT, context), {"tenant": TENANT, "context": context}))
    records += [
        RegistryRecord(one.key, None)
        for one in older
        if one.is_deleted
        and one.id == new.id
        and one.version < new.version
        and not state.referrers(one.subject, one.version, deleted=True)
    ]
    records.append(RegistryRecord(new.key, new.value()))
    return Registered(new, tuple(records))


def _is_same(state: SubjectState, schema: CanonicalSchema, one: SchemaVersion) -> bool:
    """Whether a version has the schema in another text. A schema with its references written out is the same one."""
    given, stored = schema.content, one.content
    if given.language != stored.language or given.metadata != stored.metadata or given.rule_set != stored.rule_set:
        return False
    if given.references and given.references != stored.references:
        return False
    if not given.references and stored.references and schema.parsed.language != "AVRO":
        return False
    try:
        return parse_version(state, one).structure == schema.parsed.structure
    except errors.RegistryError:
        return False
