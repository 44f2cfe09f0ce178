"""The documentation builds as one site without a warning, and each page is in its navigation."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.pages import DOCS

from scripts import site

ROOT = DOCS.parent
CONFIG = yaml.safe_load((ROOT / "mkdocs.yml").read_text())


def entries(nav: list[Any]) -> list[str]:
    found = []
    for one in nav:
        for value in one.values():
            found += entries(value) if isinstance(value, list) else [value]
    return found


def test_each_page_is_in_the_navigation_once() -> None:
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")} | set(site.ROOT_PAGES.values())
    found = entries(CONFIG["nav"])
    assert sorted(found) == sorted(pages)


def test_users_pages_come_first_and_maintainers_pages_last() -> None:
    titles = [next(iter(part)) for part in CONFIG["nav"]]
    assert titles == ["Start", "Guides", "Reference", "Benchmarks", "For maintainers"]
    maintainers = entries(CONFIG["nav"][-1]["For maintainers"])
    assert {"architecture.md", "claims.md", "invariants.md", "files.md", "contributing.md"} <= set(maintainers)


def test_the_repository_is_that_of_the_package() -> None:
    assert CONFIG["repo_url"] == site.repository()


def test_links_of_the_readme_lead_to_pages_of_the_site() -> None:
    known = {"client.md", "changelog.md", "benchmarks.svg", "benchmarks/broker.md"}
    blob, raw = site.addresses()

    def of_readme(link: str) -> str:
        return site.target(link, "index.md", "README.md", known)

    assert of_readme(f"{blob}docs/client.md#errors") == "client.md#errors"
    assert of_readme(f"{blob}CHANGELOG.md") == "changelog.md"
    assert of_readme(f"{raw}docs/benchmarks.svg") == "benchmarks.svg"
    assert of_readme(f"{blob}LICENSE") == f"{blob}LICENSE"
    assert of_readme("https://semver.org") == "https://semver.org"
    assert site.target("../client.md", "benchmarks/broker.md", "docs/benchmarks/broker.md", known) == "../client.md"
    assert site.target("../../LICENSE", "benchmarks/broker.md", "docs/benchmarks/broker.md", known) == f"{blob}LICENSE"
    assert site.target("../CHANGELOG.md", "client.md", "docs/client.md", known) == "changelog.md"


def test_links_in_code_stay_as_they_are() -> None:
    text = "`[a](x.md)` [a](x.md)\n\n```python spark\n[a](x.md)\n```\n"
    blob, _ = site.addresses()
    changed = site.with_links(text, "index.md", "README.md", {"other.md"})
    assert changed == f"`[a](x.md)` [a]({blob}x.md)\n\n```python\n[a](x.md)\n```\n"


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = Path(sys.executable).with_name("zensical")
    if not command.exists():
        pytest.skip("zensical is not installed (pip install 'odradek[docs]'; make docs installs it)")
    for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "pyproject.toml", "mkdocs.yml"):
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(DOCS, tmp_path / "docs")
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "site.py", tmp_path / "scripts")
    done = subprocess.run(
        [sys.executable, "scripts/site.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "arning" not in done.stdout
    built = tmp_path / "build" / "site"
    page = (built / "reference" / "client-settings" / "index.html").read_text()
    assert re.search(r'<h3 id="producer-linger_ms"', page)
    brokers = (built / "reference" / "broker-settings" / "index.html").read_text()
    assert 'href="#remotelogmanager"' in brokers
    assert re.search(r'<h3 id="remotelogmanager"', brokers)
    topics = (built / "reference" / "topic-settings" / "index.html").read_text()
    assert 'href="#retention.ms"' in topics
    assert '<span id="retention.ms">' in topics
    assert (built / "search.json").exists()
    assert (built / "spark.md").read_text().startswith("# ")
    listed = re.findall(r"^- \[[^\]]+\]\(([^)]+)\): \S", (built / "llms.txt").read_text(), re.MULTILINE)
    assert sorted(["index.md", *listed]) == sorted(entries(CONFIG["nav"]))
    assert all((built / page).exists() for page in listed)
    assert asked_hosts(built) == set()


ASKS = re.compile(
    r"<(?:script|img|iframe|source|link)\b[^>]*?\b(?:src|href)=\"?(?:https?:)?//([^/\"\s>]+)[^>]*>", re.DOTALL
)


def asked_hosts(built: Path) -> set[str]:
    """The hosts that a browser asks when it shows a page. A canonical link is only an address."""
    return {
        found[1]
        for page in built.rglob("*.html")
        for found in ASKS.finditer(page.read_text())
        if 'rel="canonical"' not in found[0] and "rel=canonical" not in found[0]
    }


def test_llms_txt_has_a_line_for_each_page_of_the_navigation(tmp_path: Path) -> None:
    (tmp_path / "index.md").write_text("# Name\n\nIt **is** a [thing](x.md). It does more.\n")
    (tmp_path / "a.md").write_text("# A\n\n| x |\n|---|\n\nThe first: `code`\nof two. The second.\n")
    (tmp_path / "b.md").write_text("# B\n\n```python\nx = 1\n```\n\nAfter the code.\n")
    nav = "  - Start: index.md\n  - Guides:\n      - Page A: a.md\n      - Notes:\n          - Page B: b.md\n"
    lines = site.index_of_texts(nav, tmp_path).splitlines()
    assert lines == [
        "# Odradek", "", "> It is a thing.", "", "## Guides", "", "- [Page A](a.md): The first: `code` of two.",
        "", "## Notes", "", "- [Page B](b.md): After the code.",
    ]  # fmt: skip
