"""Misspelt settings in requests: Kafka's messages, without a search for similar names."""

from __future__ import annotations

import difflib
from collections import Counter
from pathlib import Path

import pytest
from support.brokers import Wire

import odradek
from odradek.broker.settings.config import LEAST_SEGMENT_BYTES, BrokerConfig, log_config
from odradek.core.errors import ConfigError
from odradek.testing.process import BrokerProcess

INVALID_CONFIG = 40
TOPIC, BROKER = 2, 4
REQUESTS = 4000


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts searches for similar names, and comparisons with known names."""
    counted: Counter[str] = Counter()
    search, compare = difflib.get_close_matches, difflib.SequenceMatcher.ratio

    def searching(*arguments, **options):
        counted["searches"] += 1
        return search(*arguments, **options)

    def comparing(self):
        counted["comparisons"] += 1
        return compare(self)

    monkeypatch.setattr(difflib, "get_close_matches", searching)
    monkeypatch.setattr(difflib.SequenceMatcher, "ratio", comparing)
    return counted


def creation(setting: str) -> dict[str, object]:
    configs = [{"name": setting, "value": "1"}]
    row = {"name": "t", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": configs}
    return {"topics": [row], "timeout": 1000, "validate_only": False}


def change(kind: int, name: str, setting: str) -> dict[str, object]:
    rows = [{"name": setting, "config_operation": 0, "value": "1"}]
    return {"resources": [{"resource_type": kind, "resource_name": name, "configs": rows}], "validate_only": False}


def test_misspelt_settings_of_requests_are_not_compared_with_known_names(searches: Counter[str]) -> None:
    with odradek.Broker(in_thread=True) as broker, Wire(broker.bootstrap_servers) as wire:
        sent = [wire.send(19, 5, creation(f"retention.m{number}")) for number in range(REQUESTS)]
        replies = [wire.receive(19, 5, request).topics[0] for request in sent]
        assert {reply.error_code for reply in replies} == {INVALID_CONFIG}
        texts = [reply.error_message for reply in replies]
        assert texts == [f"Unknown topic config name: retention.m{number}" for number in range(REQUESTS)]
        broker.create_topic("here")
        for kind, name in ((TOPIC, "here"), (BROKER, "1"), (BROKER, "")):
            for version in (0, 1):
                reply = wire.call(44, version, change(kind, name, "log.retention.mss")).responses[0]
                if kind == BROKER:  # stored, as in Kafka: a plug-in may read it
                    assert reply.error_code == 0
                    continue
                assert reply.error_code == INVALID_CONFIG
                assert reply.error_message.endswith(("name: log.retention.mss", "config 'log.retention.mss'"))
    assert searches == {}


def test_errors_of_local_calls_name_the_nearest_setting(searches: Counter[str]) -> None:
    with pytest.raises(ConfigError, match=r"did you mean 'num\.partitions'"):
        BrokerConfig({"num.partition": "1"})
    with odradek.Broker(in_thread=True) as broker, pytest.raises(ValueError, match=r"did you mean 'retention\.ms'"):
        broker.create_topic("t", config={"retention.mss": "1"})
    assert searches["searches"] == 2


# --- internal.segment.bytes, a setting for tests ----------------------------------------------------------------


def test_a_client_cannot_request_a_segment_per_record(tmp_path: Path) -> None:
    least = LEAST_SEGMENT_BYTES
    with BrokerProcess(tmp_path) as running, Wire(running.bootstrap) as wire:

        def create(name: str, value: int) -> int:
            message = creation("internal.segment.bytes")
            message["topics"][0] |= {
                "name": name, "configs": [{"name": "internal.segment.bytes", "value": str(value)}]
            }  # fmt: skip
            return int(wire.call(19, 5, message).topics[0].error_code)

        assert [create(f"t{value}", value) for value in (-1, 0, 1, 70, least - 1)] == [INVALID_CONFIG] * 5
        assert create("small", least) == 0
        message = change(TOPIC, "small", "internal.segment.bytes")
        assert wire.call(44, 1, message).responses[0].error_code == INVALID_CONFIG
    assert not list((tmp_path / "data").glob("t*-0"))


def test_a_smaller_segment_size_of_an_existing_topic_is_kept() -> None:
    """Size zero is kept, too. Kafka does not append to a topic with that size."""
    for value in (0, 1, 70):
        assert log_config(BrokerConfig(), {"internal.segment.bytes": str(value)}).segment_bytes == value
