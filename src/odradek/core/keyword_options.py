"""Functions with one options object that are called with the options as keywords."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Collection
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
O = TypeVar("O")  # noqa: E741
R = TypeVar("R")


def with_keywords(kind: Callable[P, O]) -> Callable[[Callable[[O], R]], Callable[P, R]]:
    """Gives a function the parameters of ``kind``, a dataclass, so that each option is declared only once.

    Editors and type checkers show these parameters. The function raises TypeError for an unknown or missing one.
    """

    def decorate(function: Callable[[O], R]) -> Callable[P, R]:
        signature = inspect.signature(kind)

        @functools.wraps(function)
        def called(*given: P.args, **named: P.kwargs) -> R:
            try:
                _check_names(named, signature)
                signature.bind(*given, **named)
            except TypeError as error:
                raise TypeError(f"{function.__name__}() {error}") from None
            return function(kind(*given, **named))

        shown = signature.replace(return_annotation=inspect.signature(function).return_annotation)
        called.__signature__ = shown  # type: ignore[attr-defined]  # for inspect.signature and help()
        return called

    return decorate


def _check_names(named: Collection[str], signature: inspect.Signature) -> None:
    """Raises TypeError for a name that is not a parameter."""
    for name in named:
        if name not in signature.parameters:
            nearest = difflib.get_close_matches(name, signature.parameters, n=1)
            hint = f": did you mean {nearest[0]!r}?" if nearest else ""
            raise TypeError(f"has no option {name!r}{hint}")
