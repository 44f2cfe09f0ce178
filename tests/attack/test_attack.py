"""The attacker of the pipelines for a bounded time: two drivers, signals, old copies, foreign commits.

``python tests/attack/attack.py --help`` runs it for longer. ODRADEK_ATTACK_MINUTES changes the time, and
ODRADEK_ATTACK_SEED the steps.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import odradek

PROGRAM = Path(__file__).with_name("attack.py")
MINUTES = float(os.environ.get("ODRADEK_ATTACK_MINUTES", "6"))
SEED = os.environ.get("ODRADEK_ATTACK_SEED", "test-long")


def attack(*options: str, minutes: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(PROGRAM), "--minutes", str(minutes), "--seed", SEED, *options],
        capture_output=True, text=True, timeout=minutes * 60 + 1800, check=False,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the attacker reads /proc to stop all processes of a driver")
@pytest.mark.parametrize("engine", ["plain", "spark"])
def test_the_attacker_finds_nothing(engine: str) -> None:
    done = attack(*(["--plain"] if engine == "plain" else []), minutes=MINUTES)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    assert "0 faults in " in done.stdout, "it has run to its end"
    assert "== episode 0" in done.stdout


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the attacker reads /proc to stop all processes of a driver")
def test_the_attacker_sees_a_guard_that_is_taken_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of the sources accepts every checkpoint: old copies of one lose and repeat rows."""
    source = Path(odradek.__file__).parent.parent
    shutil.copytree(source, tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    module = tmp_path / "src" / "odradek" / "pipelines" / "commit" / "state.py"
    text = module.read_text()
    for name in ("_check_continued", "_check_equal"):
        guard = f"def {name}(known: QueryState, plan: BatchPlan, table: str) -> None:\n"
        assert guard in text
        text = text.replace(guard, f"{guard}    return\n")
    for guard in ("if plan.batch > known.batch + 1:", "if plan.batch < known.batch:"):
        assert guard in text
        text = text.replace(guard, "if False:")
    module.write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "src"))
    done = attack("--plain", "--stop", minutes=MINUTES)
    assert done.returncode == 1, done.stdout[-3000:]
    assert "records missing" in done.stdout or "records too often" in done.stdout
