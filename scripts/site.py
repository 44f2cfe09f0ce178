"""Builds the documentation as one site, in build/site: ``python scripts/site.py``.

The pages are those of docs, and those of ``ROOT_PAGES`` in the repository's root: README.md is the start of the site.
README.md has absolute links, because package indexes show it. This script makes links to pages of the site relative. A
link to a file that is not part of the site leads to the repository. The script writes the changed pages to build/pages,
and Zensical makes the site from them. A warning makes the build fail.
"""

from __future__ import annotations

import posixpath
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "build" / "pages"
ROOT_PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
"""Files of the root, and the names of their pages in the site."""
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^(```\w+) .*$", re.MULTILINE)
"""The first line of a block of code whose language is followed by words for the tests. The site drops these words."""
_CODE = re.compile(r"(^```.*?^```$|`[^`\n]+`)", re.MULTILINE | re.DOTALL)


def repository() -> str:
    """The address of the repository, from pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return str(project["urls"]["Source"])


def addresses() -> tuple[str, str]:
    """The start of the addresses of GitHub's pages for files, and of raw files (for pictures)."""
    return (
        f"{repository()}/blob/main/",
        f"{repository().replace('github.com', 'raw.githubusercontent.com')}/main/",
    )


def collect_pages() -> None:
    """Writes the pages of the site, with their links, into ``PAGES``."""
    shutil.rmtree(PAGES, ignore_errors=True)
    shutil.copytree(ROOT / "docs", PAGES)
    for source, page in ROOT_PAGES.items():
        shutil.copy(ROOT / source, PAGES / page)
    known = {path.relative_to(PAGES).as_posix() for path in PAGES.rglob("*") if path.is_file()}
    of_root = {page: source for source, page in ROOT_PAGES.items()}
    for path in PAGES.rglob("*.md"):
        page = path.relative_to(PAGES).as_posix()
        path.write_text(with_links(path.read_text(), page, of_root.get(page, f"docs/{page}"), known))


def with_links(text: str, page: str, source: str, known: set[str]) -> str:
    """The text of a page with the links of the site. ``source``: the page's file. ``known``: all files of the site."""

    def changed(link: re.Match[str]) -> str:
        return f"]({target(link[1], page, source, known)})"

    parts = _CODE.split(text)
    return "".join(_FENCE.sub(r"\1", part) if part.startswith("`") else _LINK.sub(changed, part) for part in parts)


def target(link: str, page: str, source: str, known: set[str]) -> str:
    """The target of a link in the site."""
    address, mark, anchor = link.partition("#")
    blob, raw = addresses()
    prefix = next((one for one in (blob, raw) if address.startswith(one)), "")
    if prefix:
        path = address.removeprefix(prefix)
    elif not address or re.match(r"[a-z]+:", address):
        return link
    else:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), address))
    wanted = ROOT_PAGES.get(path, path.removeprefix("docs/") if path.startswith("docs/") else "")
    if wanted in known:
        return posixpath.relpath(wanted, posixpath.dirname(page) or ".") + mark + anchor
    return f"{blob}{path}{mark}{anchor}"


def main() -> int:
    collect_pages()
    shutil.rmtree(ROOT / "build" / "site", ignore_errors=True)
    command = [str(Path(sys.executable).with_name("zensical")), "build", "--strict", "--clean"]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
