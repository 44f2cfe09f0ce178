"""Packages that pages name as ``odradek.lag.describe`` work after ``import odradek`` alone, and load only then."""

from __future__ import annotations

import subprocess
import sys

import pytest

import odradek

PACKAGES = ("aio", "client", "history", "lag", "pipelines", "spark", "testing")


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_is_loaded_at_its_first_use(package: str) -> None:
    program = (
        "import sys, odradek\n"
        f"assert 'odradek.{package}' not in sys.modules\n"
        f"assert odradek.{package}.__name__ == 'odradek.{package}'\n"
        f"assert 'odradek.{package}' in sys.modules\n"
    )
    if package == "lag":
        program += "odradek.lag.describe\n"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_another_name_is_no_package() -> None:
    with pytest.raises(AttributeError, match="module 'odradek' has no attribute 'lags'"):
        getattr(odradek, "lags")  # noqa: B009  a checker of types knows that there is none
