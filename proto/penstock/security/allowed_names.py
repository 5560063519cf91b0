"""Lets in callers by the common name of their certificate, method by method."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import grpc
import grpc.aio

log = logging.getLogger(__name__)


class OnlyNames(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Refuses callers whose certificate bears another common name, method by method."""

    def __init__(self, allowed: frozenset[str]) -> None:
        self._allowed = allowed

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        """Return the method's handler behind the check; None for an unknown method."""
        handler = await continuation(details)
        if handler is None:
            return None
        kind = ("stream" if handler.request_streaming else "unary") + "_"
        kind += "stream" if handler.response_streaming else "unary"
        checked = self._checked(getattr(handler, kind))
        make: Callable[..., Any] = getattr(grpc, f"{kind}_rpc_method_handler")
        return make(checked, handler.request_deserializer, handler.response_serializer)

    def _checked(self, method: Any) -> Any:
        if inspect.isasyncgenfunction(method):

            async def streaming(request: Any, context: Any) -> Any:
                await self._check(context)
                async with aclosing(method(request, context)) as responses:
                    async for response in responses:
                        yield response

            return streaming

        async def calling(request: Any, context: Any) -> Any:
            await self._check(context)
            response = method(request, context)
            # Generated services answer UNIMPLEMENTED without being coroutines.
            return await response if inspect.isawaitable(response) else response

        return calling

    async def _check(self, context: Any) -> None:
        found = context.auth_context().get("x509_common_name", ())
        names = [name.decode("utf-8", "replace") for name in found]
        if self._allowed.isdisjoint(names):
            told = f"the certificate's common name is {', '.join(map(repr, names)) or 'missing'}"
            allowed = ", ".join(sorted(self._allowed))
            log.warning("refused %s: %s; allowed are: %s", context.peer(), told, allowed)
            await context.abort(
                grpc.StatusCode.UNAUTHENTICATED, f"{told}, which cert-allowed-cn does not list"
            )
