"""Confluent's HTTP API: the answers to requests.

Source: the package ``rest.resources`` of confluentinc/schema-registry 8.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from odradek._version import __version__
from odradek.registry.http_server import HttpReply, HttpRequest
from odradek.registry.store import Decision, SchemaStore
from odradek.schemas import languages
from odradek.schemas.subjects import deletion, errors, names, registration
from odradek.schemas.subjects.errors import RegistryError
from odradek.schemas.subjects.registration import SchemaRequest
from odradek.schemas.subjects.state import SchemaContent, SchemaReference, SchemaVersion, SubjectState

T = TypeVar("T")
_MAX_INT = (1 << 31) - 1
_TRUE = ("true", "1", "")


class RegistryApi:
    """The answers. ``answer`` never raises for what a client sends."""

    def __init__(self, store: SchemaStore) -> None:
        self._store = store
        self._routes: dict[str, Callable[[HttpRequest], object]] = {
            "subjects": self._subjects,
            "schemas": self._schemas,
            "config": self._config,
            "mode": self._mode,
            "compatibility": self._compatibility,
            "contexts": self._contexts,
            "v1": self._metadata,
        }

    def answer(self, request: HttpRequest) -> HttpReply:
        if not request.path:
            return HttpReply(body={})
        try:
            route = self._routes.get(request.path[0])
            found = None if route is None else route(request)
            if isinstance(found, HttpReply):
                return found
            if found is None:
                raise RegistryError(40400, "HTTP 404 Not Found")
            return HttpReply(body=found)
        except RegistryError as error:
            code = 404 if error.code == 40400 else error.code
            return HttpReply(error.status, {"error_code": code, "message": error.message})

    # --- subjects ---------------------------------------------------------------------------------------------

    def _subjects(self, request: HttpRequest) -> object:
        match request.method, request.path[1:]:
            case "GET", ():
                prefix = request.query.get("subjectPrefix", names.ALL)
                return self._page(request, self._store.read(lambda state: _subject_list(state, request, prefix)))
            case "POST", (subject,):
                return self._look_up(request, names.plain(subject))
            case "DELETE", (subject,):
                own = names.plain(subject)
                permanent = _flag(request, "permanent")
                return self._change(lambda state: deletion.delete_subject(state, own, permanent=permanent))
            case _, (subject, "versions", *rest):
                return self._versions(request, names.plain(subject), rest)
        return None

    def _look_up(self, request: HttpRequest, subject: str) -> object:
        given = _schema_request(request, subject)
        deleted = _flag(request, "deleted")

        def question(state: SubjectState) -> object:
            asked = _normalized(state, subject, given)
            found = registration.look_up(state, subject, asked, deleted=deleted)
            if found is None:
                has = state.has(subject, deleted=deleted)
                raise errors.no_schema() if has else errors.no_subject(subject)
            return self._shown(state, found, request)

        return self._store.read(question)

    def _versions(self, request: HttpRequest, subject: str, rest: Sequence[str]) -> object:
        match request.method, rest:
            case "GET", []:
                return self._page(request, self._store.read(lambda state: _version_list(state, request, subject)))
            case "POST", []:
                return self._register(request, subject)
            case "GET", [version]:
                deleted = _flag(request, "deleted")
                return self._store.read(
                    lambda state: self._shown(state, _version(state, subject, version, deleted=deleted), request)
                )
            case "GET", [version, "schema"]:
                deleted = _flag(request, "deleted")
                return self._store.read(
                    lambda state: self._text(state, _version(state, subject, version, deleted=deleted), request)
                )
            case "GET", [version, "referencedby"]:
                return self._page(request, self._store.read(lambda state: _referrers(state, request, subject, version)))
            case "DELETE", [version]:
                number, permanent = _version_number(version), _flag(request, "permanent")
                return self._change(lambda state: deletion.delete_version(state, subject, number, permanent=permanent))
        return None

    def _register(self, request: HttpRequest, subject: str) -> object:
        if not names.is_valid(subject):
            raise errors.invalid_subject(subject)
        given = _schema_request(request, subject)

        def decide(state: SubjectState) -> Decision[object]:
            found, records = registration.register(state, subject, _normalized(state, subject, given))
            # Without the text, as up to Confluent Platform 7: Confluent's Python client stores a text that it gets, and
            # then takes a canonical .proto text for a descriptor.
            return records, {"version": found.version, "id": found.id, "guid": found.content.guid}

        known = self._store.read(lambda state: _already(decide, state, given))
        return known if known is not None else self._store.change(decide)

    # --- schemas by id ----------------------------------------------------------------------------------------

    def _schemas(self, request: HttpRequest) -> object:
        if request.method != "GET":
            return None
        match request.path[1:]:
            case ():
                return self._page(request, self._store.read(lambda state: self._all(state, request)))
            case ("types",):
                return list(languages.NAMES)
            case ("ids", schema_id, *rest):
                number = _number(schema_id)
                return self._store.read(lambda state: self._by_id(state, request, number, rest))
            case ("guids", guid, *rest):
                return self._store.read(lambda state: self._by_guid(state, request, guid, rest))
        return None

    def _all(self, state: SubjectState, request: HttpRequest) -> list[object]:
        deleted, latest = _flag(request, "deleted"), _flag(request, "latestOnly")
        prefix = request.query.get("subjectPrefix", names.ALL)
        found = [one for one in state.all_versions(prefix) if deleted or not one.is_deleted]
        if latest:
            found = list({one.subject: one for one in found}.values())
        return [self._shown(state, one, request) for one in found]

    def _by_id(self, state: SubjectState, request: HttpRequest, schema_id: int, rest: Sequence[str]) -> object:
        subject = request.query.get("subject")
        found = state.with_id(schema_id, None if subject is None else names.plain(subject))
        if rest in (["subjects"], ["versions"]):
            if not found:
                raise errors.no_schema()
            return self._page(request, _users(state, found[0], request, rest[0]))
        if not found:
            raise errors.no_schema(schema_id)
        if rest == ["schema"]:
            return self._text(state, found[0], request)
        if rest:
            return None
        shown = self._shown(state, found[0], request)
        hidden = ("id",) if subject is not None else ("id", "subject", "version")
        body = {name: value for name, value in shown.items() if name not in hidden}
        if _flag(request, "fetchMaxId"):
            body["maxId"] = state.newest_id(names.split(found[0].subject).context)
        return body

    def _by_guid(self, state: SubjectState, request: HttpRequest, guid: str, rest: Sequence[str]) -> object:
        ids = list(state.ids_of_guid(guid))
        if rest == ["ids"]:
            return [{"context": context, "id": one} for context, one in ids]
        if rest:
            return None
        if not ids:
            raise errors.no_schema(guid)
        context, schema_id = ids[0]
        shown = self._shown(state, state.with_id(schema_id, names.joined(context, ""))[0], request)
        return {name: value for name, value in shown.items() if name not in ("id", "subject", "version")}

    # --- settings, compatibility ------------------------------------------------------------------------------

    def _config(self, request: HttpRequest) -> object:
        subject = _settings_subject(request)
        match request.method, len(request.path):
            case "GET", 1 | 2:
                read = SubjectState.config_in_scope if _flag(request, "defaultToGlobal") else SubjectState.config
                found = self._store.read(lambda state: read(state, subject))
                if found is None:
                    raise errors.no_config(str(subject))
                return found
            case "PUT", 1 | 2:
                given = _object(request)
                return _echo(self._change(lambda state: deletion.update_config(state, subject, given)))
            case "DELETE", 1 | 2:
                return self._change(lambda state: deletion.delete_config(state, subject))
        return None

    def _mode(self, request: HttpRequest) -> object:
        subject = _settings_subject(request)
        match request.method, len(request.path):
            case "GET", 1 | 2:
                read = SubjectState.mode_in_scope if _flag(request, "defaultToGlobal") else SubjectState.mode
                found = self._store.read(lambda state: read(state, subject))
                if found is None:
                    raise errors.no_mode(str(subject))
                return {"mode": found}
            case "PUT", 1 | 2:
                given, force = _object(request).get("mode"), _flag(request, "force")
                return self._change(lambda state: deletion.set_mode(state, subject, given, force=force))
            case "DELETE", 1 | 2:
                recursive = _flag(request, "recursive")
                return self._change(lambda state: deletion.delete_mode(state, subject, recursive=recursive))
        return None

    def _compatibility(self, request: HttpRequest) -> object:
        match request.method, request.path[1:]:
            case "POST", ("subjects", subject, "versions", *rest) if len(rest) < 2:
                own = names.plain(subject)
                given = _schema_request(request, own)
                number = _version_number(rest[0]) if rest else None
                found = self._store.read(lambda state: _objections(state, own, given, number, request))
                body: dict[str, object] = {"is_compatible": not found}
                return body | {"messages": found} if _flag(request, "verbose") else body
        return None

    def _contexts(self, request: HttpRequest) -> object:
        if request.method != "GET" or len(request.path) > 1:
            return None
        prefix = request.query.get("contextPrefix", "")
        found = self._store.read(lambda state: [one for one in state.contexts() if one.startswith(prefix)])
        return self._page(request, found)

    def _metadata(self, request: HttpRequest) -> object:
        match request.method, request.path[1:]:
            case "GET", ("metadata", "id"):
                self._store.read(lambda state: None)
                cluster = {"kafka-cluster": self._store.topic.cluster_id, "schema-registry-cluster": "schema-registry"}
                return {"scope": {"path": [], "clusters": cluster}, "id": ""}
            case "GET", ("metadata", "version"):
                return {"version": __version__, "commitId": "odradek"}
        return None

    # --- parts ------------------------------------------------------------------------------------------------

    def _change(self, decide: Callable[[SubjectState], deletion.SubjectChange]) -> Any:
        def decided(state: SubjectState) -> Decision[Any]:
            change = decide(state)
            return change.records, change.answer

        return self._store.change(decided)

    def _shown(self, state: SubjectState, one: SchemaVersion, request: HttpRequest) -> dict[str, object]:
        """The JSON of a version, as the class ``Schema`` of Confluent's client has it."""
        content = one.content
        shown = {
            "subject": one.subject, "version": one.version, "id": one.id, "guid": content.guid,
            "schemaType": content.language, "references": [ref.as_json() for ref in content.references] or None,
            "metadata": content.metadata, "ruleSet": content.rule_set, "schema": self._format(state, one, request),
            "ts": one.timestamp if one.timestamp >= 0 else None, "deleted": one.is_deleted,
        }  # fmt: skip
        return {name: value for name, value in shown.items() if value is not None}

    def _text(self, state: SubjectState, one: SchemaVersion, request: HttpRequest) -> HttpReply:
        return HttpReply(text=self._format(state, one, request))

    def _format(self, state: SubjectState, one: SchemaVersion, request: HttpRequest) -> str:
        form = request.query.get("format", "").strip()
        return registration.parse_version(state, one).formatted(form) if form else one.content.text

    def _page(self, request: HttpRequest, rows: Sequence[T]) -> Sequence[T]:
        """Returns the rows that ``offset`` and ``limit`` choose."""
        offset, limit = _number(request.query.get("offset", "0")), _number(request.query.get("limit", "-1"))
        return rows[max(offset, 0) :][: limit if limit >= 0 else None]


def _flag(request: HttpRequest, name: str) -> bool:
    return name in request.query and request.query[name].lower() in _TRUE


def _number(text: str) -> int:
    try:
        found = int(text)
    except ValueError:
        raise RegistryError(40400, "HTTP 404 Not Found") from None
    if abs(found) > _MAX_INT:
        raise RegistryError(40400, "HTTP 404 Not Found")
    return found


def _version_number(text: str) -> int:
    """Returns the number of a version; -1 for ``latest``. Raises RegistryError 42202."""
    if text.strip().lower() == "latest":
        return -1
    try:
        found = int(text)
    except ValueError:
        raise errors.invalid_version(text) from None
    if not (found == -1 or 0 < found <= _MAX_INT):
        raise errors.invalid_version(text)
    return found


def _object(request: HttpRequest) -> Mapping[str, object]:
    if not isinstance(request.body, dict):
        raise RegistryError(42200, "the body must be a JSON object")
    return request.body


def _settings_subject(request: HttpRequest) -> str | None:
    """The subject of a config or mode; None for the global one, which the default context also names."""
    if len(request.path) < 2:
        return None
    return names.plain(request.path[1]) or None


def _schema_request(request: HttpRequest, subject: str) -> SchemaRequest:
    """Returns the schema of a request. Raises RegistryError 42201."""
    body = _object(request)
    text, language = body.get("schema") or "", body.get("schemaType") or "AVRO"
    if not isinstance(text, str) or not isinstance(language, str):
        raise errors.invalid_schema("schema and schemaType must be texts")
    schema_id, version = body.get("id"), body.get("version")
    content = SchemaContent(
        language, text, _references(body), _object_or_none(body, "metadata"), _object_or_none(body, "ruleSet")
    )
    try:
        _ = content.digest
    except (TypeError, AttributeError, OverflowError) as error:
        raise errors.invalid_schema(f"metadata, ruleSet or references: {error}") from error
    return SchemaRequest(
        content,
        schema_id if isinstance(schema_id, int) and schema_id >= 0 else None,
        version if isinstance(version, int) else 0,
        normalize=_flag(request, "normalize"),
        force=_flag(request, "force"),
    )


def _object_or_none(body: Mapping[str, object], name: str) -> dict[str, object] | None:
    value = body.get(name)
    if value is None or isinstance(value, dict):
        return value
    raise errors.invalid_schema(f"{name} must be a JSON object")


def _references(body: Mapping[str, object]) -> tuple[SchemaReference, ...]:
    found = []
    given = body.get("references") or ()
    if not isinstance(given, list | tuple):
        raise errors.invalid_schema(f"Invalid references: {given}")
    for one in given:
        parts = (one.get("name"), one.get("subject"), one.get("version")) if isinstance(one, dict) else (None,) * 3
        name, subject, version = parts
        if not isinstance(name, str) or not isinstance(subject, str) or not isinstance(version, int):
            raise errors.invalid_schema(f"Invalid reference: {one}")
        found.append(SchemaReference(name, subject, version))
    return tuple(found)


def _normalized(state: SubjectState, subject: str, given: SchemaRequest) -> SchemaRequest:
    """The config of a subject may ask for normalized schemas."""
    if given.normalize or state.config_in_scope(subject).get("normalize") is not True:
        return given
    return SchemaRequest(given.content, given.id, given.version, normalize=True, force=given.force)


def _already(decide: Callable[[SubjectState], Decision[object]], state: SubjectState, given: SchemaRequest) -> object:
    """The answer to a registration that needs no record, so that a known schema is found without a writer."""
    records, shown = decide(state)
    return None if records else shown


def _subject_list(state: SubjectState, request: HttpRequest, prefix: str) -> list[str]:
    deleted, only = _flag(request, "deleted"), _flag(request, "deletedOnly")
    found = []
    for subject in state.subjects(prefix):
        alive = state.has(subject, deleted=False)
        if (not alive) if only else (alive or deleted):
            found.append(subject)
    return found


def _version_list(state: SubjectState, request: HttpRequest, subject: str) -> list[int]:
    deleted, only = _flag(request, "deleted"), _flag(request, "deletedOnly")
    if not state.has(subject, deleted=deleted or only):
        raise errors.no_subject(subject)
    versions = state.of_subject(subject)
    if _flag(request, "deletedAsNegative"):
        return [-one.version if one.is_deleted else one.version for one in versions]
    if only:
        return [one.version for one in versions if one.is_deleted]
    return [one.version for one in versions if deleted or not one.is_deleted]


def _version(state: SubjectState, subject: str, version: str, *, deleted: bool) -> SchemaVersion:
    number = _version_number(version)
    found = state.version(subject, number, deleted=deleted)
    if found is None:
        has = state.has(subject, deleted=deleted)
        raise errors.no_version(number) if has else errors.no_subject(subject)
    return found


def _referrers(state: SubjectState, request: HttpRequest, subject: str, version: str) -> list[int]:
    one = _version(state, subject, version, deleted=True)
    users = state.referrers(subject, one.version, deleted=_flag(request, "deleted"))
    return sorted({user.id for user in users})


def _users(state: SubjectState, one: SchemaVersion, request: HttpRequest, what: str) -> list[object]:
    """The subjects, or their versions, that have the schema of a version."""
    context = names.joined(names.split(one.subject).context, "")
    deleted = _flag(request, "deleted")
    users = [each for each in state.with_id(one.id, context) if deleted or not each.is_deleted]
    if what == "subjects":
        return [each.subject for each in users]
    return [{"subject": each.subject, "version": each.version} for each in users]


def _objections(
    state: SubjectState, subject: str, given: SchemaRequest, number: int | None, request: HttpRequest
) -> list[str]:
    """The messages of a check of compatibility, with one version, or by the level of the subject (None)."""
    if number is None:
        older = [one for one in state.of_subject(subject) if not one.is_deleted]
    else:
        one = state.version(subject, number)
        if one is None and number != -1:
            raise errors.no_version(number)
        older = [] if one is None else [one]
    try:
        return registration.compatibility_objections(state, subject, _normalized(state, subject, given), older)
    except RegistryError as error:
        if error.code == 42201 and _flag(request, "verbose"):
            return [error.message]
        raise


def _echo(stored: Mapping[str, object]) -> dict[str, object]:
    """The answer to a change of a config: Confluent's clients read the level as ``compatibility``."""
    return {("compatibility" if name == "compatibilityLevel" else name): value for name, value in stored.items()}
