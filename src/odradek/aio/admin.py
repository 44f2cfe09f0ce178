"""The asyncio ``Admin``: topics, offsets, groups, transactions and settings, on the caller's event loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Unpack

from odradek.client.admin.calls import AdminCalls
from odradek.client.client_text import admin_text
from odradek.client.config import ClientConfig, as_config
from odradek.client.context_managers import AsyncCloseable
from odradek.client.other_names import OtherNames

if TYPE_CHECKING:
    from odradek.client.settings.setting_types import ClientSettings


class Admin(AdminCalls, OtherNames, AsyncCloseable):
    """The calls of ``odradek.Admin`` as coroutines, for one running loop. The tasks of that loop may share an Admin.

    >>> async with Admin("127.0.0.1:9092") as admin:                        # doctest: +SKIP
    ...     await admin.list_group_offsets("flight-lake")
    """

    def __init__(
        self,
        bootstrap_servers: ClientConfig | Mapping[str, object] | Sequence[str] | str,
        **settings: Unpack[ClientSettings],
    ) -> None:
        super().__init__(as_config(bootstrap_servers, **settings))

    def __repr__(self) -> str:
        return admin_text(self.config.bootstrap_servers, is_closed=self._closed)
