"""The workflows, the issue forms and the hooks can be read, and call targets, scripts and files that exist."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
VARIABLES = set(re.findall(r"\$\((\w+)\)", MAKEFILE))


def jobs(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text())["jobs"]
    return found


def lines(job: dict[str, Any]) -> list[str]:
    """The lines that a job runs. Each ``${{ … }}`` expression is one word."""
    found = [line for step in job["steps"] for line in step.get("run", "").splitlines()]
    return [re.sub(r"\$\{\{ (\S+) \}\}", r"<\1>", line) for line in found]


def targets(job: dict[str, Any]) -> set[str]:
    words = {word for line in lines(job) if line.startswith("make ") for word in line.split()[1:]}
    return {word for word in words if "=" not in word}


TESTS = jobs(ROOT / ".github" / "workflows" / "tests.yml")


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_each_job_calls_targets_with_variables_that_exist(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text())
    assert True in workflow, "YAML reads the key on as true"
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        assert job["runs-on"].split("-")[0] in {"ubuntu", "macos"}, name
        assert targets(job) <= TARGETS, name
        given = {word.partition("=")[0] for line in lines(job) if line.startswith("make ") for word in line.split()}
        assert given - {"make"} - TARGETS <= VARIABLES, name
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step), name
            assert re.fullmatch(r"[\w-]+/[\w-]+@[\w./]+", step.get("uses", "actions/checkout@v7")), name


def test_each_action_has_one_version() -> None:
    steps = [step for path in WORKFLOWS for job in jobs(path).values() for step in job["steps"] if "uses" in step]
    versions = {step["uses"] for step in steps}
    assert len(versions) == len({used.partition("@")[0] for used in versions}), sorted(versions)


def test_dependabot_proposes_new_versions_of_the_actions() -> None:
    (one,) = yaml.safe_load((ROOT / ".github" / "dependabot.yml").read_text())["updates"]
    assert one["package-ecosystem"] == "github-actions"
    assert one["schedule"]["interval"] == "monthly"


def test_the_tests_run_on_each_python_of_the_classifiers() -> None:
    classified = {name.rpartition(" ")[2] for name in PROJECT["classifiers"] if " :: 3." in name}
    assert set(TESTS["test"]["strategy"]["matrix"]["python"]) == classified
    assert f">={min(classified)}" == PROJECT["requires-python"]
    assert "python<matrix.python>" in "".join(lines(TESTS["test"]))


def test_there_is_a_job_for_each_kind_of_check() -> None:
    kinds = {name: targets(job) for name, job in TESTS.items()}
    assert kinds == {
        "check": {"check"}, "test": {"test"}, "macos": {"test"}, "lowest": {"test-lowest"}, "newest": {"test-newest"},
        "package": {"package"}, "docs": {"docs"},
    }  # fmt: skip
    assert TESTS["macos"]["runs-on"].startswith("macos")


def test_a_release_builds_once_and_publishes_without_a_token() -> None:
    release = jobs(ROOT / ".github" / "workflows" / "release.yml")
    publish = release["publish"]
    assert publish["needs"] == "build"
    assert publish["permissions"] == {"id-token": "write"}
    assert [step["uses"].partition("@")[0] for step in publish["steps"]] == [
        "actions/download-artifact", "pypa/gh-action-pypi-publish",
    ]  # fmt: skip
    assert targets(release["build"]) == {"package"}
    assert "secrets." not in (ROOT / ".github" / "workflows" / "release.yml").read_text()
    check = re.search(r"grep -qx \"__version__ = (.*)\" (\S+)", "\n".join(lines(release["build"])))
    assert check is not None
    assert '__version__ = "' in (ROOT / check[2]).read_text()
    assert '"twine"' in (ROOT / "scripts" / "package_check.py").read_text()


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_the_issue_forms_have_what_a_form_needs(path: Path) -> None:
    form = yaml.safe_load(path.read_text())
    if path.name == "config.yml":
        assert form["contact_links"][0]["url"].startswith(PROJECT["urls"]["Source"])
        return
    assert {"name", "description", "body"} <= form.keys()
    identifiers = [one["id"] for one in form["body"]]
    assert len(set(identifiers)) == len(identifiers)
    assert all(one["type"] == "textarea" and one["attributes"]["label"] for one in form["body"])


def test_the_hooks_run_tools_and_scripts_that_exist() -> None:
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert repository["repo"] == "local"
    tools = {"ruff", "python"}
    for hook in repository["hooks"]:
        assert hook["language"] == "system"
        words = hook["entry"].split() + hook.get("args", [])
        assert words[0].removeprefix(".venv/bin/") in tools
        scripts = [word for word in words if word.endswith(".py")]
        assert [script for script in scripts if not (ROOT / script).exists()] == []
