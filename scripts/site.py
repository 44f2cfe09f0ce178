"""Builds the documentation as one site, in build/site: ``python scripts/site.py``.

The pages are those of docs, and those of ``ROOT_PAGES`` in the repository's root: README.md is the start of the site.
README.md has absolute links, because package indexes show it. This script makes links to pages of the site relative. A
link to a file that is not part of the site leads to the repository. The script writes the changed pages to build/pages,
and Zensical makes the site from them. A warning makes the build fail.

Beside each page the site has the page as Markdown (``spark/index.html`` and ``spark.md``), and ``llms.txt`` lists them
with their first sentences (llmstxt.org), for programs that read documentation.
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
    "SECURITY.md": "security-policy.md",
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


def write_texts(site: Path) -> None:
    """Writes the pages as Markdown beside their HTML, and ``llms.txt``."""
    for path in PAGES.rglob("*.md"):
        target_path = site / path.relative_to(PAGES)
        target_path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target_path)
    nav = (ROOT / "mkdocs.yml").read_text().split("\nnav:\n", 1)[1]
    (site / "llms.txt").write_text(index_of_texts(nav, PAGES))


def index_of_texts(nav: str, pages: Path) -> str:
    """Returns ``llms.txt``: the start page's summary, then a section with links for each part of the navigation.

    ``nav``: the lines of the navigation in mkdocs.yml. A part without pages below it is the start page."""
    start = (pages / "index.md").read_text()
    lines = ["# Odradek", "", f"> {summary(start)}"]
    for line in nav.splitlines():
        name, _, page = line.strip().removeprefix("- ").partition(":")
        page = page.strip()
        if not page:
            lines += ["", f"## {name}", ""]
        elif page != "index.md":
            lines.append(f"- [{name}]({page}): {summary((pages / page).read_text())}")
    return "\n".join([*lines, ""])


def summary(text: str) -> str:
    """Returns the first sentence of a page's first paragraph, without the targets of its links."""
    paragraphs = [part.strip() for part in text.split("\n\n")]
    first = next(part for part in paragraphs if part and not part.startswith(("#", "<", "|", "```", "!", "- ")))
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(first.split())).replace("**", "")
    return re.split(r"(?<=\.) (?=[A-Z`])", plain, maxsplit=1)[0]


def main() -> int:
    collect_pages()
    shutil.rmtree(ROOT / "build" / "site", ignore_errors=True)
    command = [str(Path(sys.executable).with_name("zensical")), "build", "--strict", "--clean"]
    code = subprocess.run(command, cwd=ROOT, check=False).returncode
    if code == 0:
        write_texts(ROOT / "build" / "site")
    return code


if __name__ == "__main__":
    sys.exit(main())
