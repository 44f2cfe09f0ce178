"""docs/security.md is correct: its file of settings, commands and Python work at a listener with TLS and SCRAM."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.pages import DOCS, examples
from support.secured_listeners import SecuredListener, secured_listener
from support.secured_proxy import Users

from odradek.spark.options import client_config

PAGE = DOCS / "security.md"
TEXT = PAGE.read_text()
ADDRESS = "localhost:9094"


@pytest.fixture(scope="module")
def listener(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredListener]:
    users = Users("alice", "alice-secret")
    (file,) = re.findall(r"```properties\n(.*?)```", TEXT, re.DOTALL)
    with secured_listener(tmp_path_factory.mktemp("authority"), "orders", users=users) as listener:
        (listener.folder / "client.properties").write_text(file)
        yield listener


def test_the_file_serves_the_commands(listener: SecuredListener) -> None:
    commands = [line for block in re.findall(r"```bash\n(.*?)```", TEXT, re.DOTALL) for line in block.splitlines()]
    assert len(commands) == 2
    for line in commands:
        program, *arguments = shlex.split(line.replace(ADDRESS, listener.proxy.address))
        assert program == "odradek"
        done = subprocess.run(
            [sys.executable, "-m", "odradek", *arguments],
            cwd=listener.folder, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        # A busy machine may take a second for the first connection, which is then a line of its own.
        errors = [one for one in done.stderr.splitlines() if "no answer yet" not in one]
        assert (done.returncode, errors) == (0, []), line
        assert "orders" in done.stdout or "groups" in line
    assert set(listener.proxy.logins) == {"alice"}


def test_the_python_of_the_page_runs(
    listener: SecuredListener, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.chdir(listener.folder)
    namespace: dict[str, Any] = {"__name__": "page"}
    blocks = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert len(blocks) == len(examples(PAGE)) == 2
    for block in blocks:
        exec(block.replace(ADDRESS, listener.proxy.address), namespace)
    assert "orders" in capsys.readouterr().out
    options = {name.removeprefix("kafka."): value for name, value in namespace["spark_options"].items()}
    assert client_config(options).security.mechanism == "SCRAM-SHA-512"


@pytest.mark.parametrize("part", re.findall(r"^\| `([^`]*)` \|", TEXT.partition("## Failures")[2], re.MULTILINE))
def test_messages_of_the_page_are_those_of_the_code(part: str) -> None:
    sources = Path(os.path.dirname(PAGE)).parent / "src" / "odradek"
    code = (sources / "net" / "connection.py").read_text() + (sources / "client" / "authentication.py").read_text()
    for words in re.split(r"[…:;=]", part):
        assert words.strip() in code
