"""What the pages that change something share: who may, the word in each form, errors, and the head of a page."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from odradek.core.extras import extra_in_errors

with extra_in_errors(__name__):
    from starlette.concurrency import run_in_threadpool
    from starlette.requests import Request
    from starlette.responses import Response

from odradek.core.errors import OdradekError
from odradek.monitor.changes.service import ChangeForbidden
from odradek.monitor.changes.store import PlanUsed
from odradek.monitor.http.access import AccessTokens
from odradek.monitor.http.change_api import (
    CSV_TYPE,
    BodyTooLong,
    body_of,
    check_identity,
    identity_of,
    present,
    refusal_of,
)
from odradek.monitor.http.json_api import Json
from odradek.monitor.web.form_fields import Form, form_fields

if TYPE_CHECKING:
    from odradek.monitor.changes.service import Changes
    from odradek.monitor.offsets_reader import OffsetsTopicReader
    from odradek.monitor.web.pages import Pages

_TITLES = {400: "A wrong value", 403: "Not allowed", 404: "Not found", 409: "The cluster has changed"}


class ChangeEndpoints:
    """``changes``: None on a monitor that changes nothing."""

    def __init__(
        self, pages: Pages, reader: OffsetsTopicReader, tokens: AccessTokens, changes: Changes | None
    ) -> None:  # fmt: skip
        self.reader = reader
        self._pages, self._tokens, self._changes = pages, tokens, changes

    def get(self, call: Callable[[Changes, Request], Response]) -> Callable[[Request], Response]:
        def endpoint(request: Request) -> Response:
            return self._replied(request, lambda: call(present(self._changes), request))

        return endpoint

    def post(self, call: Callable[[Changes, Request, Form], Response]) -> Any:
        async def endpoint(request: Request) -> Response:
            try:
                body = await body_of(request)
            except BodyTooLong as error:
                return self._message(request, error)
            return await run_in_threadpool(self._replied, request, lambda: self._posted(call, request, body))

        return endpoint

    def _posted(self, call: Callable[[Changes, Request, Form], Response], request: Request, body: bytes) -> Response:
        changes, identity = present(self._changes), identity_of(request)
        check_identity(identity)
        form = form_fields(request.headers.get("content-type", ""), body)
        if not self._tokens.is_form_word(identity, form.get("word", "")):
            raise ChangeForbidden("the form is of another start of the service, or of another user: open it once more")
        return call(changes, request, form)

    def _replied(self, request: Request, call: Callable[[], Response]) -> Response:
        try:
            return call()
        except OdradekError as error:
            return self._message(request, error)

    def _message(self, request: Request, error: OdradekError) -> Response:
        code, body = refusal_of(error)
        content = {"title": _TITLES.get(code, "The change was not possible"), "text": body["error"]}
        return self.shown(request, "message.html", content, "/", code)

    def shown(self, request: Request, template: str, content: Json, here: str, code: int = 200) -> Response:
        """Returns a page. ``here``: the address from which it renews itself."""
        with self.reader.access:
            head = self._pages.head(request)
        return self._pages.page(template, content, head, here, code)


def found(value: Any, kind: str) -> Any:
    """Returns a plan or a change. Raises PlanUsed, which is 404, if there is none."""
    if value is None:
        raise PlanUsed(f"There is no such {kind}: it is carried out already, or unknown.")
    return value


def csv_reply(text: str, name: str) -> Response:
    return Response(text, media_type=CSV_TYPE, headers={"content-disposition": f'attachment; filename="{name}.csv"'})
