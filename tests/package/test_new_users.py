"""If a package is missing, Python is too old or a setting is wrong, a new user gets one line with the reason."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from odradek.core.extras import command_of

WITHOUT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {%r,}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
"""


def last_line(program: str, **environment: str) -> str:
    """The last line of the error of a program that fails."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | environment, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 1
    return done.stderr.splitlines()[-1].partition(": ")[2]


@pytest.mark.parametrize(
    ("missing", "line", "expected"),
    [
        ("pyspark", "from odradek.spark import register",
         "odradek.spark.register needs pyspark: " + command_of("spark")),
        ("pyspark", "from odradek.spark.session import session; session('flights')",
         "Spark needs PySpark: " + command_of("spark")),
        ("pyarrow", "from odradek.history import read_offset_history",
         "odradek.history.read_offset_history needs pyarrow: " + command_of("arrow")),
        ("pyarrow", "from odradek.history.analysis import analyse_offset_history",
         "odradek.history.analysis needs pyarrow: " + command_of("arrow")),
        ("pyarrow", "from odradek.pipelines import ingest",
         "odradek.pipelines.ingest needs pyarrow: " + command_of("spark")),
        ("numpy", "from odradek.pipelines.history.frames import offset_history",
         "odradek.pipelines.history.frames needs numpy: " + command_of("spark")),
    ],
)  # fmt: skip
def test_a_missing_package_is_named_with_its_extra(missing: str, line: str, expected: str) -> None:
    assert last_line(WITHOUT % missing + line) == expected


def test_the_error_of_a_missing_package_of_no_extra_is_unchanged() -> None:
    program = WITHOUT % "kio" + "import odradek; odradek.Admin"
    assert last_line(program).startswith("No module named 'kio")


def test_an_old_python_is_refused_in_one_line() -> None:
    program = "import sys; sys.version_info = (3, 10, 13); import odradek"
    assert last_line(program) == "odradek needs Python 3.11 or newer, not 3.10"


def test_the_error_of_a_broker_names_a_wrong_log_level() -> None:
    program = "import odradek\nwith odradek.Broker(): pass"
    assert last_line(program, ODRADEK_LOG_LEVEL="LOUD") == (
        "the broker did not start: odradek broker: ODRADEK_LOG_LEVEL must be DEBUG, INFO, WARNING, ERROR or CRITICAL, "
        "not 'LOUD'"
    )


def test_a_broker_that_cannot_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    program = f"import odradek\nwith odradek.Broker(data_dir={str(tmp_path / 'file')!r}): pass"
    assert last_line(program).endswith(f"{tmp_path / 'file'} cannot be used: it is a file, not a directory")
