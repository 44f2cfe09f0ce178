"""The types of settings are those that are checked at run time. mypy and pyright report each wrong setting."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import get_type_hints

import pytest

from odradek.client.config import ClientConfig
from odradek.client.consumer.setting_types import ConsumerSettings
from odradek.client.group.config import ConsumerConfig
from odradek.client.producer.config import ProducerConfig
from odradek.client.producer.setting_types import ProducerSettings
from odradek.client.settings.security_settings import WITH_EFFECT
from odradek.client.settings.setting_types import ClientSettings, SecuritySettings

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
REFUSED = HERE / "refused.py"
ACCEPTED = HERE / "accepted.py"
EXPECTED = {number for number, line in enumerate(REFUSED.read_text().splitlines(), 1) if line.endswith("# refused")}
SECURITY = get_type_hints(SecuritySettings)
CONFIGS = [
    (ClientSettings, [ClientConfig], {"bootstrap_servers", "security"}),
    (ProducerSettings, [ClientConfig, ProducerConfig], {"bootstrap_servers", "security"}),
    (ConsumerSettings, [ConsumerConfig], {"assignors", "security"}),
]


@pytest.mark.parametrize(("settings", "configs", "others"), CONFIGS)
def test_the_types_are_those_that_are_checked_at_run_time(
    settings: type, configs: list[type], others: set[str]
) -> None:
    declared = {one.name: str(one.type) for config in configs for one in fields(config)}
    hints = {name: _text(hint) for name, hint in get_type_hints(settings).items() if name not in SECURITY}
    assert hints.keys() == declared.keys() - others
    wider = {"bootstrap_servers", "partition_assignment_strategy"}  # converted before they are checked
    assert {name: kind for name, kind in hints.items() if name not in wider} == {
        name: kind for name, kind in declared.items() if name in hints and name not in wider
    }


def test_the_types_of_security_are_those_that_have_an_effect() -> None:
    assert SECURITY.keys() == WITH_EFFECT
    numbers, flags = ("_ms",), ("enable_ssl_certificate_verification", "sasl_oauthbearer_header_urlencode")
    for name, hint in SECURITY.items():
        assert hint is (int if name.endswith(numbers) else bool if name in flags else str), name


def _text(hint: object) -> str:
    return hint.__name__ if isinstance(hint, type) and not hasattr(hint, "__args__") else str(hint)


def test_mypy_reports_each_wrong_setting_and_nothing_else() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-warn-unused-configs", str(REFUSED), str(ACCEPTED)],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    found = re.findall(r"(\w+)\.py:(\d+): error", done.stdout)
    assert {int(line) for name, line in found if name == "refused"} == EXPECTED, done.stdout + done.stderr
    assert {name for name, _ in found} == {"refused"}, done.stdout


@pytest.mark.slow
def test_pyright_reports_each_wrong_setting_and_nothing_else() -> None:
    npx = shutil.which("npx")
    if npx is None:
        pytest.skip("pyright needs Node, which is not installed")
    done = subprocess.run(
        [npx, "--yes", "pyright@1.1.407", "--outputjson", "--pythonpath", sys.executable, str(REFUSED), str(ACCEPTED)],
        cwd=ROOT, capture_output=True, text=True, timeout=600, check=False, env=os.environ | {"CI": "1"},
    )  # fmt: skip
    if not done.stdout.lstrip().startswith("{"):
        pytest.skip(f"pyright cannot be installed: {done.stderr.strip().splitlines()[-1:]}")
    report = json.loads(done.stdout)["generalDiagnostics"]
    errors = [
        (Path(one["file"]).name, one["range"]["start"]["line"] + 1) for one in report if one["severity"] == "error"
    ]
    assert {line for name, line in errors if name == "refused.py"} == EXPECTED, report
    assert {name for name, _ in errors} <= {"refused.py"}, report
