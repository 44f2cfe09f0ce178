"""docs/monitor.md is correct: its examples print the shown output, and it names every option and path."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
from support.brokers import eventually
from support.pages import DOCS, close_all, examples
from support.running_monitor import RunningMonitor

from odradek.cli.main import app
from odradek.monitor.choices import SORTS
from odradek.monitor.http.metrics import METRICS

PAGE = DOCS / "monitor.md"


def test_the_examples_print_what_the_page_says() -> None:
    namespace: dict[str, Any] = {"__name__": "page"}
    try:
        for example in examples(PAGE):
            example.check(namespace)
    finally:
        close_all(namespace, ("admin", "broker"))


def test_the_commands_of_the_page_have_only_options_that_exist() -> None:
    root: Any = typer.main.get_command(app)
    commands = [root.get_command(typer.Context(root), name) for name in ("monitor", "top", "mcp")]
    pipeline = root.get_command(typer.Context(root), "pipeline")
    commands.append(pipeline.get_command(typer.Context(pipeline), "history"))
    known = {name for command in commands for one in command.params for name in one.opts}
    of_docker = {"--target", "--read-only", "--tmpfs"}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", PAGE.read_text())) - known == of_docker


def test_the_requests_of_changes_do_what_the_page_says(tmp_path: Path) -> None:
    """The block of shell commands runs as it stands, at another port."""
    pytest.importorskip("starlette", reason="the extra ui is not installed")
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    import odradek
    from odradek import Admin, OffsetAndMetadata, TopicPartition

    (commands,) = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    with odradek.Broker() as broker, Admin(broker.bootstrap_servers) as admin:
        admin.create_topics([odradek.client.NewTopic("orders")])
        with odradek.Producer(broker.bootstrap_servers) as producer:
            for number in range(9):
                producer.send("orders", str(number).encode())
        for group in ("billing", "shipping"):
            admin.alter_group_offsets(group, {TopicPartition("orders", 0): OffsetAndMetadata(8)})
        monitor = RunningMonitor(broker.bootstrap_servers, "--data", str(tmp_path), "--allow", "reset")
        try:
            eventually(lambda: json.loads(monitor.get("/api/v1/groups")[1])["total"] == 2, what="the groups")
            script = "set -e\n" + commands.replace("http://127.0.0.1:8000", monitor.url)
            shown = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout
        finally:
            monitor.end()
        assert shown.startswith("orders,0,5\n")
        assert shown.count('"outcome":"done"') == 2 + 3  # of two groups: all of it, and each
        for group in ("billing", "shipping"):
            assert admin.list_group_offsets(group)[TopicPartition("orders", 0)].offset == 0


def test_the_file_of_webhooks_is_right_and_each_key_is_described(tmp_path: Path) -> None:
    pytest.importorskip("jinja2", reason="the extra ui is not installed")
    from odradek.monitor.incidents import bodies, webhook_file
    from odradek.monitor.incidents.incident import KINDS

    text = PAGE.read_text()
    (file,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    (tmp_path / "webhook-secret").write_text("s" * 32)
    (tmp_path / "webhooks.toml").write_text(file.replace("…", "x"))
    found = webhook_file.read_webhooks(tmp_path / "webhooks.toml")
    assert [hook.name for hook in found.hooks] == ["chat", "pager", "own"]
    section = text[text.index("## Incidents and webhooks") : text.index("## In Python")]
    sample = webhook_file.sample_message("", "kafka").values
    for name in (*webhook_file._KEYS, *bodies.BODIES, *KINDS, *sample):
        assert f"`{name}`" in section, name


def test_the_page_names_the_paths_and_the_kinds_of_metrics() -> None:
    pytest.importorskip("starlette", reason="the extra ui is not installed")
    text = PAGE.read_text()
    for path in ("/metrics", "/v3/kafka", "/api/v1/status", "/api/v1/groups", "/api/v1/topics", "/healthz", "/readyz"):
        assert f"`{path}" in text
    prefixes = {re.match(r"(kafka_consumergroup|kafka_partition|burrow|odradek)_", name)[0] for name in METRICS}
    assert all(f"`{prefix}…`" in text for prefix in prefixes)
    assert "lag" in SORTS
    (alerts,) = re.findall(r"```promql\n(.*?)```", text, re.DOTALL)
    assert {line.split()[0] for line in alerts.splitlines()} <= METRICS.keys()
