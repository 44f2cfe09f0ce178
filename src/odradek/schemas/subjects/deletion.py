"""Deletions of subjects and versions, and changes of configs and modes. Nothing here changes the state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from odradek.schemas.subjects import errors, names
from odradek.schemas.subjects.compatibility import LEVELS
from odradek.schemas.subjects.records import CLEAR_SUBJECT, CONFIG, DELETE_SUBJECT, MODE, RegistryKey, RegistryRecord
from odradek.schemas.subjects.state import SchemaVersion, SubjectState

MODES = ("READWRITE", "READONLY", "READONLY_OVERRIDE", "IMPORT", "FORWARD")
CONFIG_FIELDS = (
    "alias", "aliasForDeks", "normalize", "validateFields", "validateNewSchemas", "validateRules", "compatibilityLevel",
    "compatibilityPolicy", "compatibilityGroup", "defaultMetadata", "overrideMetadata", "defaultRuleSet",
    "overrideRuleSet",
)  # fmt: skip
_POLICIES = ("STRICT", "LENIENT", "LOGICAL")


class SubjectChange(NamedTuple):
    """The records of a change, and its answer."""

    records: tuple[RegistryRecord, ...]
    answer: Any


def delete_subject(state: SubjectState, subject: str, *, permanent: bool) -> SubjectChange:
    """Deletes the versions of a subject; the answer has their numbers. Raises RegistryError."""
    if not state.has(subject, deleted=True):
        raise errors.no_subject(subject)
    if not permanent and not state.has(subject, deleted=False):
        raise errors.subject_soft_deleted(subject)
    _check_writable(state, subject)
    versions = [one for one in state.of_subject(subject) if permanent or not one.is_deleted]
    for one in versions:
        others = {user.subject for user in state.referrers(subject, one.version, deleted=permanent)} - {subject}
        if others:
            raise errors.is_referenced(one.shown)
        if permanent and not one.is_deleted:
            raise errors.subject_not_soft_deleted(subject)
    numbers = [one.version for one in versions]
    if not permanent:
        value = {"subject": subject, "version": numbers[-1]}
        return SubjectChange((RegistryRecord(RegistryKey(DELETE_SUBJECT, subject), value),), numbers)
    # In descending order: a version may refer to an earlier one.
    records = [RegistryRecord(one.key, None) for one in reversed(versions)]
    return SubjectChange((state.newest_ids(), *records, *_without_settings(state, subject)), numbers)


def delete_version(state: SubjectState, subject: str, version: int, *, permanent: bool) -> SubjectChange:
    """Deletes one version, -1 the newest; the answer is its number. Raises RegistryError."""
    found = state.version(subject, version, deleted=True)
    if found is None:
        raise errors.no_version(version) if state.has(subject, deleted=True) else errors.no_subject(subject)
    if found.is_deleted and not permanent:
        raise errors.version_soft_deleted(subject, version)
    _check_writable(state, subject)
    if state.referrers(subject, found.version, deleted=permanent):
        raise errors.is_referenced(found.shown)
    if not permanent:
        return SubjectChange((RegistryRecord(found.key, found.value(is_deleted=True)),), found.version)
    if not found.is_deleted:
        raise errors.version_not_soft_deleted(subject, found.version)
    is_last = len(state.of_subject(subject)) == 1
    settings = _without_settings(state, subject) if is_last else ()
    return SubjectChange((state.newest_ids(), RegistryRecord(found.key, None), *settings), found.version)


def _without_settings(state: SubjectState, subject: str) -> tuple[RegistryRecord, ...]:
    """Returns the records that remove the mode and the config of a subject without versions."""
    kinds = [kind for kind, own in ((MODE, state.mode(subject)), (CONFIG, state.config(subject))) if own is not None]
    return tuple(RegistryRecord(RegistryKey(kind, subject), None) for kind in kinds)


def _check_writable(state: SubjectState, subject: str | None) -> None:
    if state.mode_in_scope(subject) in ("READONLY", "READONLY_OVERRIDE"):
        context = names.joined(names.split(subject or "").context, "")
        raise errors.not_permitted(f"Subject {subject} in context {context} is in read-only mode")


def update_config(state: SubjectState, subject: str | None, given: Mapping[str, Any]) -> SubjectChange:
    """Changes the fields of a config that a request has; None removes one. The answer is the config.

    ``subject``: None for the global config. Raises RegistryError."""
    changes = _checked(given)
    if subject is not None and not names.is_valid(subject, is_config=True):
        raise errors.invalid_subject(subject)
    _check_writable(state, subject)
    old = state.config(subject) or {}
    fields = {name: value for name in CONFIG_FIELDS if (value := changes.get(name, old.get(name))) is not None}
    value = fields if subject is None else {"subject": subject} | fields
    return SubjectChange((RegistryRecord(RegistryKey(CONFIG, subject), value),), fields)


def _checked(given: Mapping[str, object]) -> dict[str, object]:
    """Returns the fields of a config. ``compatibility`` is another name of its level."""
    changes = {name: given[name] for name in CONFIG_FIELDS if name in given}
    if "compatibility" in given:
        changes["compatibilityLevel"] = given["compatibility"]
    level = changes.get("compatibilityLevel")
    if level is not None:
        if str(level).upper() not in LEVELS:
            raise errors.invalid_level()
        changes["compatibilityLevel"] = str(level).upper()
    policy = changes.get("compatibilityPolicy")
    if policy is not None:
        if str(policy).upper() not in _POLICIES:
            raise errors.RegistryError(42203, f"Invalid compatibility policy. Valid values are {', '.join(_POLICIES)}")
        changes["compatibilityPolicy"] = str(policy).upper()
    return changes


def delete_config(state: SubjectState, subject: str | None) -> SubjectChange:
    """Removes a config; the answer is the removed one. Raises RegistryError."""
    old = state.config(subject)
    if old is None:
        raise errors.no_subject(str(subject))
    _check_writable(state, subject)
    return SubjectChange((RegistryRecord(RegistryKey(CONFIG, subject), None),), old)


def set_mode(state: SubjectState, subject: str | None, given: object, *, force: bool) -> SubjectChange:
    """Changes a mode. IMPORT needs an empty subject, or ``force``. Raises RegistryError."""
    mode = None if given is None else str(given).upper()
    if subject is not None and not names.is_valid(subject, is_config=True):
        raise errors.invalid_subject(subject)
    if mode is not None and mode not in MODES:
        raise errors.invalid_mode()
    if mode == "FORWARD" and (subject is None or names.split(subject).context != names.GLOBAL_CONTEXT):
        raise errors.invalid_mode("Forward mode only supported on global level")
    records: list[RegistryRecord] = []
    if mode == "IMPORT" and state.mode_in_scope(subject) != "IMPORT" and not force:
        records = _cleared(state, subject)
    value = None if mode is None else {"mode": mode} if subject is None else {"subject": subject, "mode": mode}
    return SubjectChange((*records, RegistryRecord(RegistryKey(MODE, subject), value)), {"mode": given})


def _cleared(state: SubjectState, subject: str | None) -> list[RegistryRecord]:
    """Returns the records that remove the deleted versions before an import. Raises RegistryError for others."""
    versions = _in_scope(state, subject)
    if any(not one.is_deleted for one in versions):
        raise errors.not_permitted("Cannot import since found existing subjects")
    for one in versions:
        if state.referrers(one.subject, one.version, deleted=True):
            raise errors.is_referenced(one.shown)
    records = [state.newest_ids(), *(RegistryRecord(one.key, None) for one in versions)]
    value = {} if subject is None else {"subject": subject}
    return [*records, RegistryRecord(RegistryKey(CLEAR_SUBJECT, subject), value)]


def _in_scope(state: SubjectState, subject: str | None) -> list[SchemaVersion]:
    """The versions of a subject, or of a context; those of the default context for None."""
    context, name = names.split(subject or "")
    if name:
        return state.of_subject(str(subject))
    return [one for one in state.all_versions() if names.split(one.subject).context == context]


def delete_mode(state: SubjectState, subject: str | None, *, recursive: bool) -> SubjectChange:
    """Removes a mode; the answer has the removed one. ``recursive``: also those of a context's subjects."""
    old = state.mode(subject)
    if old is None and not recursive:
        raise errors.no_subject(str(subject))
    subjects: list[str | None] = [subject]
    if recursive and not names.split(subject or "").name:
        within = {one.subject for one in _in_scope(state, subject) if state.mode(one.subject) is not None}
        subjects += sorted(within)
    records = tuple(RegistryRecord(RegistryKey(MODE, one), None) for one in subjects)
    return SubjectChange(records, {} if old is None else {"mode": old})
