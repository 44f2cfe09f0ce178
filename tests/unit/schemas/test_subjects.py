"""The subjects of a registry: registration, deletion, settings, and random histories of several registries.

The histories use the store of a registry with a topic in memory. Between any two steps of one registry, the other ones
do whole changes. Planted faults show that the checks find what they look for.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from odradek.registry.store import SchemaStore
from odradek.registry.topic_log import RegistryFenced
from odradek.schemas.subjects import deletion, errors, names, records, registration
from odradek.schemas.subjects.errors import RegistryError
from odradek.schemas.subjects.records import RegistryKey, RegistryRecord
from odradek.schemas.subjects.registration import SchemaRequest
from odradek.schemas.subjects.state import SchemaContent, SchemaReference, SubjectState

INT, LONG, STRING = '"int"', '"long"', '"string"'


def request(text: str, language: str = "AVRO", **how: Any) -> SchemaRequest:
    references = tuple(SchemaReference(*one) for one in how.pop("references", ()))
    return SchemaRequest(SchemaContent(language, text, references), **how)


def record(*fields: tuple[Any, ...]) -> str:
    rows = [{"name": one[0], "type": one[1]} | ({"default": one[2]} if len(one) > 2 else {}) for one in fields]
    return json.dumps({"type": "record", "name": "R", "fields": rows})


class Subjects:
    """A state with its log. Each change goes through bytes, as in a topic."""

    def __init__(self) -> None:
        self.state = SubjectState()
        self.log: list[tuple[bytes, bytes | None]] = []

    def apply(self, changes: tuple[RegistryRecord, ...]) -> None:
        for one in changes:
            row = records.encode_key(one.key), records.encode_value(one.value)
            self.log.append(row)
            found = records.decode(*row)
            assert found is not None
            self.state.replay(found)

    def register(self, subject: str, text: str, language: str = "AVRO", **how: Any) -> tuple[int, int]:
        found, changes = registration.register(self.state, subject, request(text, language, **how))
        self.apply(changes)
        return found.version, found.id

    def change(self, decision: deletion.SubjectChange) -> Any:
        self.apply(decision.records)
        return decision.answer


@pytest.fixture
def subjects() -> Subjects:
    return Subjects()


def refused(code: int) -> Any:
    return pytest.raises(RegistryError, check=lambda error: error.code == code)


def test_records_are_those_of_confluents_registry(subjects: Subjects) -> None:
    """Equal keys have equal bytes, in Confluent's order of fields."""
    subjects.register("s", record(("a", "int")))
    subjects.register("s", record(("a", "int"), ("b", "int", 1)), references=[])
    subjects.change(deletion.update_config(subjects.state, "s", {"compatibility": "full"}))
    subjects.change(deletion.update_config(subjects.state, None, {"compatibilityLevel": "NONE"}))
    subjects.change(deletion.set_mode(subjects.state, "s", "readonly", force=False))
    keys = [key.decode() for key, _ in subjects.log]
    assert keys == [
        '{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}',
        '{"keytype":"SCHEMA","subject":"s","version":2,"magic":1}',
        '{"keytype":"CONFIG","subject":"s","magic":0}',
        '{"keytype":"CONFIG","magic":0}',
        '{"keytype":"MODE","subject":"s","magic":0}',
    ]
    values = [json.loads(value or b"") for _, value in subjects.log]
    assert list(values[0]) == ["subject", "version", "id", "schemaType", "schema", "deleted"]
    assert values[2:] == [
        {"subject": "s", "compatibilityLevel": "FULL"}, {"compatibilityLevel": "NONE"},
        {"subject": "s", "mode": "READONLY"},
    ]  # fmt: skip


def test_records_of_other_programs_change_nothing() -> None:
    for key, value in ((b"x", b"{}"), (None, None), (b"[]", b"{}"), (b'{"keytype":"NEW"}', b"{}"),
                       (b'{"keytype":"SCHEMA","subject":"s","version":1,"magic":7}', b"{}"),
                       (b'{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}', b'{"id":"x"}')):  # fmt: skip
        assert records.decode(key, value) is None


def test_one_schema_has_one_id_in_all_subjects(subjects: Subjects) -> None:
    assert subjects.register("a", INT) == (1, 1)
    assert subjects.register("b", INT) == (1, 1)
    assert subjects.register("b", '{"type": "int"}') == (1, 1)
    assert subjects.register("c", STRING) == (1, 2)
    assert [one.subject for one in subjects.state.with_id(1)] == ["a", "b"]
    assert len(subjects.log) == 3


def test_levels_compare_with_the_right_versions(subjects: Subjects) -> None:
    state = subjects.state
    first, second, third = (
        record(("a", "int")),
        record(("a", "int"), ("b", "int", 0)),
        record(("a", "int"), ("b", "int")),
    )
    subjects.register("s", first)
    subjects.register("s", second)
    # Each version can read the one before, and the third one cannot read the first one.
    assert subjects.register("s", third) == (3, 3)
    for level, allowed in (
        ("BACKWARD", True), ("BACKWARD_TRANSITIVE", False), ("FORWARD", True), ("FORWARD_TRANSITIVE", True),
        ("FULL", True), ("FULL_TRANSITIVE", False), ("NONE", True),
    ):  # fmt: skip
        subjects.change(deletion.update_config(state, "s", {"compatibility": level}))
        older = [state.of_subject("s")[0], state.of_subject("s")[1]]
        found = registration.compatibility_objections(state, "s", request(third), older)
        assert (not found) is allowed, level
    subjects.change(deletion.update_config(state, "s", {"compatibility": "FORWARD"}))
    with refused(40901):
        subjects.register("s", record(("b", "int")))
    subjects.change(deletion.update_config(state, "s", {"compatibility": "NONE"}))
    assert subjects.register("s", STRING) == (4, 4)


def test_another_language_is_incompatible(subjects: Subjects) -> None:
    subjects.register("s", INT)
    with pytest.raises(RegistryError, match="different schema type"):
        subjects.register("s", '{"type":"string"}', "JSON")
    with refused(42201):
        subjects.register("t", "x", "XML")


def test_deletion_is_soft_first(subjects: Subjects) -> None:
    state = subjects.state
    subjects.register("s", INT)
    subjects.register("s", LONG)
    with refused(40405):
        deletion.delete_subject(state, "s", permanent=True)
    with refused(40407):
        deletion.delete_version(state, "s", 2, permanent=True)
    assert subjects.change(deletion.delete_version(state, "s", 2, permanent=False)) == 2
    with refused(40406):
        deletion.delete_version(state, "s", 2, permanent=False)
    assert state.version("s", -1).version == 1  # type: ignore[union-attr]
    assert [one.is_deleted for one in state.with_id(2)] == [True]
    assert subjects.register("s", LONG) == (3, 2)
    assert [one.version for one in state.of_subject("s")] == [1, 3]
    assert subjects.change(deletion.delete_subject(state, "s", permanent=False)) == [1, 3]
    with refused(40404):
        deletion.delete_subject(state, "s", permanent=False)
    assert subjects.change(deletion.delete_subject(state, "s", permanent=True)) == [1, 3]
    with refused(40401):
        deletion.delete_subject(state, "s", permanent=True)
    assert state.with_id(2) == []
    assert subjects.register("s", STRING) == (1, 3)


def test_a_referenced_schema_stays(subjects: Subjects) -> None:
    state = subjects.state
    subjects.register("part", '{"type":"record","name":"Part","fields":[]}')
    whole = record(("p", "Part"))
    with refused(42201):
        subjects.register("whole", whole)
    subjects.register("whole", whole, references=[("Part", "part", -1)])
    assert state.of_subject("whole")[0].content.references == (SchemaReference("Part", "part", 1),)
    for permanent in (False, True):
        with refused(42206):
            deletion.delete_subject(state, "part", permanent=permanent)
    with refused(42206):
        deletion.delete_version(state, "part", 1, permanent=False)
    subjects.change(deletion.delete_subject(state, "whole", permanent=False))
    subjects.change(deletion.delete_subject(state, "part", permanent=False))
    with refused(42206):
        deletion.delete_subject(state, "part", permanent=True)


def test_a_schema_with_its_references_written_out_is_found(subjects: Subjects) -> None:
    part = {"type": "record", "name": "Part", "fields": []}
    subjects.register("part", json.dumps(part))
    assert subjects.register("whole", record(("p", "Part")), references=[("Part", "part", 1)]) == (1, 2)
    assert subjects.register("whole", record(("p", part))) == (1, 2)


def test_normalize_makes_one_schema_of_two_texts(subjects: Subjects) -> None:
    one, other = '{"b":1,"a":2}', '{"a":2,"b":1}'
    assert subjects.register("s", one, "JSON", normalize=True) == (1, 1)
    assert subjects.register("s", other, "JSON", normalize=True) == (1, 1)
    assert subjects.state.of_subject("s")[0].content.text == other


def test_contexts_have_ids_of_their_own(subjects: Subjects) -> None:
    assert subjects.register("s", INT) == (1, 1)
    assert subjects.register(":.west:s", STRING) == (1, 1)
    assert subjects.state.contexts() == [".", ".west"]
    assert [one.content.text for one in subjects.state.with_id(1)] == [INT]
    assert [one.content.text for one in subjects.state.with_id(1, ":.west:")] == [STRING]
    assert subjects.state.subjects(":.west:") == [":.west:s"]
    assert names.plain(":.:s") == "s"
    with refused(42208):
        deletion.update_config(subjects.state, "__EMPTY", {})


def test_modes(subjects: Subjects) -> None:
    state = subjects.state
    subjects.register("s", INT)
    with refused(42205):
        deletion.set_mode(state, None, "IMPORT", force=False)
    with refused(42205):
        subjects.register("s", LONG, id=9)
    subjects.change(deletion.set_mode(state, "t", "IMPORT", force=False))
    assert subjects.register("t", LONG, id=9, version=4) == (4, 9)
    with refused(42205):
        subjects.register("t", STRING, id=9)
    subjects.change(deletion.set_mode(state, None, "READONLY", force=False))
    with refused(42205):
        subjects.register("u", STRING)
    with refused(42204):
        deletion.set_mode(state, None, "OPEN", force=False)
    subjects.change(deletion.delete_mode(state, None, recursive=False))
    assert subjects.register("u", STRING) == (1, 10)


# --- random histories ---------------------------------------------------------------------------------------------


class MemoryLog:
    """A topic for several registries: records, and the epoch of the writer. ``used``: the texts that each id had."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, bytes, bytes | None]] = []
        self.end = 0
        self.epoch = 0
        self.used: dict[int, set[str]] = {}

    def append(self, changes: list[RegistryRecord]) -> None:
        for one in changes:
            value = records.encode_value(one.value)
            self.rows.append((self.end, records.encode_key(one.key), value))
            self.end += 1
            if one.key.kind == records.SCHEMA and one.value is not None:
                self.used.setdefault(one.value["id"], set()).add(one.value["schema"])

    def compact(self) -> None:
        """Keeps the newest record of each key, and no tombstone."""
        newest = {key: offset for offset, key, _ in self.rows}
        self.rows = [row for row in self.rows if newest[row[1]] == row[0] and row[2] is not None]


class MemoryTopic:
    """What ``SchemasTopic`` is for a store. ``between``: does something in place of other threads and processes."""

    topic = "memory"

    def __init__(self, log: MemoryLog, between: Callable[[], None], fault: str = "") -> None:
        self._log = log
        self._between = between
        self._fault = fault
        self._epoch = -1
        self.position = 0

    def open(self) -> None:
        self._between()

    def news(self) -> Iterator[Any]:
        self._between()
        for offset, key, value in list(self._log.rows):
            if offset >= self.position and not (self._fault == "reads late" and self.position):
                yield type("Row", (), {"offset": offset, "key": key, "value": value, "timestamp": 0})
        if not (self._fault == "reads late" and self.position):
            self.position = self._log.end

    @property
    def leads(self) -> bool:
        return self._epoch >= 0

    def lead(self, noop: RegistryRecord) -> None:
        self._between()
        self._log.epoch += 1
        self._epoch = self._log.epoch
        self._between()
        self.append([RegistryRecord(noop.key, None) if self._fault == "forgets ids" else noop])

    def append(self, changes: Any) -> None:
        self._between()
        if self._epoch != self._log.epoch and self._fault != "has no fence":
            self._epoch = -1
            raise RegistryFenced("another one")
        if self._fault == "forgets ids":
            changes = [one for one in changes if one.key.kind != records.NOOP]
        self._log.append(list(changes))
        self._between()


TEXTS = [
    INT,
    LONG,
    STRING,
    '"float"',
    '"double"',
    '"bytes"',
    record(("a", "int")),
    record(("a", "int"), ("b", "int", 0)),
]


def history(seed: int, fault: str = "") -> MemoryLog:
    """Three registries of one topic, which is compacted now and then; a registry may start again. Checks every
    answer."""
    chance = random.Random(seed)
    log = MemoryLog()
    busy: list[int] = []  # a store has a lock: its changes follow one another

    def between() -> None:
        at = chance.randrange(3)
        if at not in busy and chance.random() < 0.3:
            step(at)

    def started() -> SchemaStore:
        return SchemaStore(MemoryTopic(log, between, fault))  # type: ignore[arg-type]

    stores = [started() for _ in range(3)]
    refusals: set[int] = set()

    def step(at: int) -> None:
        busy.append(at)
        act(at)
        busy.remove(at)

    def act(at: int) -> None:
        subject, text = chance.choice("st"), chance.choice(TEXTS)
        roll = chance.random()
        try:
            if roll < 0.6:
                registered(stores[at], subject, text)
            elif roll < 0.75:
                for permanent in (False, chance.random() < 0.7):
                    stores[at].change(lambda state: deletion.delete_subject(state, subject, permanent=permanent))  # noqa: B023
            elif roll < 0.85:
                stores[at].change(lambda state: deletion.delete_version(state, subject, -1, permanent=False))
            elif roll < 0.92 and busy == [at]:
                busy[:] = range(3)
                for store in stores:  # Kafka keeps a tombstone for a day, so that every reader sees it
                    store.read(lambda state: None)
                busy[:] = [at]
                log.compact()
                stores[:] = [started() if chance.random() < 0.7 else store for store in stores]
            else:
                stores[at].read(lambda state: state.subjects())
        except RegistryError as error:
            refusals.add(error.code)

    def registered(store: SchemaStore, subject: str, text: str) -> None:
        given = request(text)

        def decide(state: SubjectState) -> tuple[Any, Any]:
            found, changes = registration.register(state, subject, given)
            return changes, found

        found = store.change(decide)
        assert log.used[found.id] == {found.content.text}, f"id {found.id} has two schemas"

    busy[:] = range(3)
    stores[0].change(lambda state: deletion.update_config(state, None, {"compatibility": "NONE"}))
    busy.clear()
    for _ in range(60):
        step(chance.randrange(3))
    assert all(len(texts) == 1 for texts in log.used.values()), "an id has two schemas"
    assert refusals <= {40401, 40402, 40404, 40405, 40406}
    busy[:] = range(3)
    _check_copies(log, stores)
    return log


def _check_copies(log: MemoryLog, stores: list[SchemaStore]) -> None:
    """All registries, and one that starts now, see the same subjects."""

    def shown(state: SubjectState) -> Any:
        return [(one.key, one.id, one.is_deleted, one.content.text) for one in state.all_versions()]

    fresh = SchemaStore(MemoryTopic(log, lambda: None))  # type: ignore[arg-type]
    expected = fresh.read(shown)
    assert [store.read(shown) for store in stores] == [expected] * len(stores)
    assert fresh.read(lambda state: state.refused) == 0


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_registries_of_one_topic_agree(first: int) -> None:
    used = [len(history(seed).used) for seed in range(first, first + 20)]
    assert max(used) > 8


@pytest.mark.parametrize("fault", ["has no fence", "forgets ids", "reads late"])
def test_planted_faults_are_found(fault: str) -> None:
    found = 0
    for seed in range(30):
        try:
            history(seed, fault)
        except (AssertionError, RegistryError):
            found += 1
    assert found, f"{fault} stays unseen"


def test_codes_are_those_of_http() -> None:
    for error, status in (
        (errors.no_subject("s"), 404),
        (errors.incompatible("s", []), 409),
        (errors.invalid_mode(), 422),
    ):
        assert error.status == status
    assert RegistryKey("NOOP") == (records.NOOP, None, None)
