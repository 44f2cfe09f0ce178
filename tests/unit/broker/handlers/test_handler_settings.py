"""The settings in the source of a handler file are those of the imported module, and a wrong one is named."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

from odradek.broker import handlers
from odradek.broker.handlers import CLIENT, HandlerFile, handler_files


def of_module(file: HandlerFile) -> HandlerFile:
    module = import_module(f"odradek.broker.handlers.{file.name}")
    values = vars(module)
    return HandlerFile(
        file.name,
        file.key,
        values["VERSIONS"],
        values.get("ADVERTISED_OLDEST", values["VERSIONS"][0]),
        is_frequent=values.get("IS_FREQUENT", False),
        replies_to_any_version=values.get("REPLIES_TO_ANY_VERSION", False),
        keeps_requests=values.get("KEEPS_REQUESTS", False),
        waits_for_others=values.get("WAITS_FOR_OTHERS", False),
        listeners=values.get("LISTENERS", (CLIENT,)),
    )


def test_the_settings_in_the_source_are_those_of_the_module() -> None:
    files = handler_files()
    assert len(files) > 60
    assert files == tuple(map(of_module, files))


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("IS_FREQUENT = 1", "IS_FREQUENT = 1: write a bool"),
        ("VERSIONS = 0", "VERSIONS = 0: write a tuple"),
        ("LISTENERS = ('clients',)", "LISTENERS = ('clients',): choose from client, controller"),
        ("LISTENERS = ()", "LISTENERS = (): choose from client, controller"),
        ("LISTENERS = (", "each setting has to be a literal in one line"),
        ("ADVERTISED_OLDEST = OLDEST", "each setting has to be a literal in one line"),
    ],
)
def test_a_wrong_setting_names_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, text: str) -> None:
    (tmp_path / "k99_news.py").write_text(f'"""News."""\n\nVERSIONS = (0, 1)\n{line}\n\n\ndef handle(): ...\n')
    monkeypatch.setattr(handlers, "__path__", [str(tmp_path)])
    handler_files.cache_clear()
    try:
        with pytest.raises(ValueError, match=re.escape(f"handlers/k99_news.py: {text}")):
            handler_files()
    finally:
        handler_files.cache_clear()


def test_settings_after_a_comment_and_before_the_first_function_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = (
        "VERSIONS = (2, 3)",
        "KEEPS_REQUESTS = True  # a reason",
        "",
        "",
        "def handle(): ...",
        "IS_FREQUENT = True",
    )
    source = "\n".join(('"""News."""', "", *lines, ""))
    (tmp_path / "k99_news.py").write_text(source)
    monkeypatch.setattr(handlers, "__path__", [str(tmp_path)])
    handler_files.cache_clear()
    try:
        (file,) = handler_files()
    finally:
        handler_files.cache_clear()
    assert (file.key, file.versions, file.keeps_requests, file.is_frequent) == (99, (2, 3), True, False)
