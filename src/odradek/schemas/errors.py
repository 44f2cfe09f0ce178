"""The errors of schemas."""

from __future__ import annotations

from odradek.core.errors import OdradekError


class InvalidSchema(OdradekError):
    """A text that is no schema of its language. The message says which part is wrong."""


class InvalidValue(OdradekError):
    """A value that does not fit its schema, or bytes that are no value of it. The message names the part."""
