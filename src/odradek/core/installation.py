"""How this installation can be extended: the shell command that adds an extra, or a package, to it.

``pip install 'odradek[arrow]'`` is right only if odradek came from a package index. From a checkout, a repository or a
wheel, pip notes the place in ``direct_url.json`` (PEP 610), and the command has to name this place. The command also
has to reach the environment that runs odradek: the first ``pip`` on the path may belong to another one.
"""

from __future__ import annotations

import json
import platform
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

_NAME = "odradek"
_OWN = re.compile(rf"{_NAME}\[(?P<extras>[^]]*)\]")
_EXTRA = re.compile(r"""extra\s*==\s*["']([^"']+)""")


def extra_command(extra: str) -> str:
    """Returns the command that adds the packages of an extra, such as ``pip install 'odradek[arrow]'``.

    If the checkout or the file that odradek came from is gone, the command names the packages of the extra instead.
    """
    try:
        distribution = metadata.distribution(_NAME)
    except metadata.PackageNotFoundError:  # the sources are on PYTHONPATH
        place = _checkout()
        return _command("-e", f"{place}[{extra}]") if place else _command(f"{_NAME}[{extra}]")
    source = _source(distribution.read_text("direct_url.json"), extra)
    return _command(*source) if source else _command(*_packages(distribution.requires or [], extra))


def package_command(package: str) -> str:
    """Returns the command that adds a package which is no part of odradek."""
    return _command(package)


def _command(*what: str) -> str:
    return " ".join(map(_quoted, (*_installer(), *what)))


def _quoted(word: str) -> str:
    if platform.system() != "Windows":
        return shlex.quote(word)
    return f'"{word}"' if re.search(r"[^\w./\\:=-]", word) else word  # cmd.exe passes single quotes on


def _installer() -> list[str]:
    """Returns the words that install into this environment."""
    python = sys.executable or "python"
    pip = shutil.which("pip")
    if pip is not None and Path(pip).parent.resolve() == Path(python).parent.resolve():
        return ["pip", "install"]
    if not _has_pip() and shutil.which("uv"):  # uv makes environments without pip
        return ["uv", "pip", "install", "--python", python]
    return [python, "-m", "pip", "install"]


def _has_pip() -> bool:
    """Looks for pip's metadata: a search for the module makes setuptools hide its own distutils in this process."""
    try:
        metadata.distribution("pip")
    except metadata.PackageNotFoundError:
        return False
    return True


def _source(noted: str | None, extra: str) -> list[str] | None:
    """Returns the arguments that install the extra from the place in ``direct_url.json``. None: the place is gone."""
    if noted is None:
        return [f"{_NAME}[{extra}]"]
    try:
        place: Mapping[str, Any] = json.loads(noted)
        url = str(place["url"])
    except (ValueError, KeyError, TypeError):
        return [f"{_NAME}[{extra}]"]
    if "vcs_info" in place:
        # The commit and not the branch: an extra must not change the version.
        version = place["vcs_info"]
        folder = f"#subdirectory={place['subdirectory']}" if place.get("subdirectory") else ""
        return [f"{_NAME}[{extra}] @ {version['vcs']}+{url}@{version['commit_id']}{folder}"]
    parts = urlsplit(url)
    if parts.scheme != "file":
        return [f"{_NAME}[{extra}] @ {url}"]
    path = Path(url2pathname(parts.path))
    if not path.exists():
        return None
    is_editable = place.get("dir_info", {}).get("editable", False)
    return [*(["-e"] if is_editable else []), f"{path}[{extra}]"]


def _packages(requirements: list[str], extra: str) -> list[str]:
    """Returns the requirements of an extra, those of the extras in it included."""
    packages = dict.fromkeys(_requirements(requirements, extra))
    return list(packages)


def _requirements(requirements: list[str], extra: str) -> Iterator[str]:
    for line in requirements:
        requirement, _, marker = line.partition(";")
        named = _EXTRA.search(marker)
        if named is None or named[1] != extra:
            continue
        if own := _OWN.match(requirement):
            for other in own["extras"].split(","):
                yield from _requirements(requirements, other.strip())
        else:
            yield requirement.strip()


def _checkout() -> Path | None:
    """Returns the checkout that this module is in. None: it is in no checkout."""
    folder = Path(__file__).parents[3]
    return folder if (folder / "pyproject.toml").is_file() else None
