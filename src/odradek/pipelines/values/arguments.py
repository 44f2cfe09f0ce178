"""Errors about arguments: the caller shows their names in its own form."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from odradek.core.errors import ConfigError

Shown = Callable[[str], str]
"""Returns the name of an argument in the form that the caller uses: ``read_by``, or ``--read-by``."""


class ArgumentError(ConfigError):
    """Wrong arguments. ``text``: makes the message from the form of the arguments' names."""

    def __init__(self, text: Callable[[Shown], str]) -> None:
        self._text = text
        super().__init__(text(str))

    def shown(self, name: Shown) -> str:
        """Returns the message with the names in another form."""
        return self._text(name)


def wrong(argument: str, said: str) -> ArgumentError:
    """Returns the error about one argument. ``said``: what is behind its name."""
    return ArgumentError(lambda shown: f"{shown(argument)}{said}")


@contextlib.contextmanager
def about(argument: str) -> Iterator[None]:
    """Raises ArgumentError for a ConfigError whose message begins with the name of the argument."""
    try:
        yield
    except ConfigError as error:
        text = str(error)
        if isinstance(error, ArgumentError) or not text.startswith(argument):
            raise
        raise wrong(argument, text.removeprefix(argument)) from error
