"""Options of pipelines may have passwords and keys of object stores: no ``repr`` shows them."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from types import ModuleType

import pytest

MODULES = ("options", "sources", "history.options", "replays.input", "replays.topic", "formats.target")
HIDDEN = {"options", "storage_options", "producer"}


@pytest.mark.parametrize("name", MODULES)
def test_no_repr_shows_options(name: str) -> None:
    module: ModuleType = importlib.import_module(f"odradek.pipelines.{name}")
    found = [
        one
        for _, kind in inspect.getmembers(module, dataclasses.is_dataclass)
        if kind.__module__ == module.__name__
        for one in dataclasses.fields(kind)
        if one.name in HIDDEN and "ReadOptions" not in str(one.type)
    ]
    assert found, "the module has options"
    assert [one.name for one in found if one.repr] == []
