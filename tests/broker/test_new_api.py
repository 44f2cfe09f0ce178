"""A stateless API is one new file: it needs no other change."""

from __future__ import annotations

import asyncio
import py_compile
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import uvloop

from odradek.broker import handlers
from odradek.broker.front_end.router import served_apis
from odradek.broker.server import BrokerServer
from odradek.broker.settings.config import BrokerConfig
from odradek.wire import frames
from odradek.wire.api_keys import API_VERSIONS

# No version of the broker serves this API yet. If one does, choose another API here.
NEW_API = 71
NEW_FILE = "k71_get_telemetry_subscriptions"
HANDLER = '''
"""GetTelemetrySubscriptions 0: no metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from odradek.broker.handlers.api import BrokerServices, Context

VERSIONS = (0, 0)


def handle(broker: BrokerServices, context: Context, message: Any) -> dict[str, Any]:
    return {
        "throttle_time": 0, "error_code": 0, "client_instance_id": message.client_instance_id, "subscription_id": 7,
        "accepted_compression_types": (), "push_interval": 300_000, "telemetry_max_bytes": 1,
        "delta_temporality": False, "requested_metrics": (),
    }
'''


@pytest.fixture
def new_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lets the broker use a copy of the handlers' directory, with one more file: ``HANDLER``."""
    directory = tmp_path / "handlers"
    assert NEW_API not in {api.key for api in handlers.handler_files()}
    shutil.copytree(handlers.__path__[0], directory, ignore=shutil.ignore_patterns("__pycache__"))
    (directory / f"{NEW_FILE}.py").write_text(HANDLER)
    monkeypatch.setattr(handlers, "__path__", [str(directory)])
    handlers.handler_files.cache_clear()
    yield
    handlers.handler_files.cache_clear()
    sys.modules.pop(f"odradek.broker.handlers.{NEW_FILE}", None)


def test_an_api_in_a_new_file_is_advertised_and_served(tmp_path: Path, new_file: None) -> None:
    async def scenario() -> None:
        broker = BrokerServer(BrokerConfig(), tmp_path / "data", ("127.0.0.1", 0))
        await broker.start()
        reader, writer = await asyncio.open_connection(*broker.address)

        async def ask(key: int, version: int, message: dict[str, object]) -> Any:
            writer.write(frames.encode_request(key, version, 1, "c", message))
            size = int.from_bytes(await reader.readexactly(4), "big")
            return frames.decode_reply(key, version, await reader.readexactly(size))[1]

        try:
            listed = await ask(API_VERSIONS, 0, {})
            assert (NEW_API, 0, 0) in [(row.api_key, row.min_version, row.max_version) for row in listed.api_keys]
            instance = UUID(int=5)
            reply = await ask(NEW_API, 0, {"client_instance_id": instance})
            assert (reply.client_instance_id, reply.subscription_id) == (instance, 7)
        finally:
            writer.close()
            await broker.stop()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario())


def test_the_versions_of_a_file_are_known_without_its_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation may have only compiled files."""
    produce = handlers.handler_files()[0]
    py_compile.compile(
        str(Path(handlers.__path__[0], f"{produce.name}.py")), cfile=str(tmp_path / f"{produce.name}.pyc")
    )
    monkeypatch.setattr(handlers, "__path__", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, f"odradek.broker.handlers.{produce.name}", raising=False)
    handlers.handler_files.cache_clear()
    try:
        assert handlers.handler_files() == (produce,)
    finally:
        handlers.handler_files.cache_clear()


@pytest.mark.parametrize("line", ['LISTENERS = ("broker",)', 'LISTENERS = ("client", "brokers")', "LISTENERS = ()"])
def test_an_api_for_listeners_that_no_node_has_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    """Without the refusal, no node would serve the API, and no line would say so."""
    (tmp_path / f"{NEW_FILE}.py").write_text(HANDLER.replace("VERSIONS = (0, 0)", f"VERSIONS = (0, 0)\n{line}"))
    monkeypatch.setattr(handlers, "__path__", [str(tmp_path)])
    handlers.handler_files.cache_clear()
    try:
        with pytest.raises(ValueError, match=f"handlers/{NEW_FILE}.py: LISTENERS = .*: choose from client, contr"):
            served_apis()
    finally:
        handlers.handler_files.cache_clear()


def test_each_kind_of_listeners_has_a_table_and_each_api_is_in_one() -> None:
    tables = {kind: served_apis(kind).keys() for kind in handlers.KINDS}
    assert set().union(*tables.values()) == {api.key for api in handlers.handler_files()}
    assert all(tables.values())
    assert tables["client"] != tables["controller"]
