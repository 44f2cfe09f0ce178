"""What is right only for a lone broker is in one module, which no other module imports at its head."""

from __future__ import annotations

import ast
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[4] / "src" / "odradek"
MODULE = "odradek.broker.metadata.lone_broker"


def test_only_functions_import_the_rules_of_a_lone_broker() -> None:
    users = {}
    for path in SOURCE.rglob("*.py"):
        text = path.read_text()
        if MODULE not in text:
            continue
        at_head = [node for node in ast.parse(text).body if isinstance(node, ast.ImportFrom) and node.module == MODULE]
        users[path.relative_to(SOURCE).as_posix()] = len(at_head)
    assert users == dict.fromkeys(["broker/node/lone_role.py", "broker/controller/write_events.py"], 0)
