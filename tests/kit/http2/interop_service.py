"""gRPC's interoperability test service, `grpc.testing.TestService`, for a server of either engine.

What it does is said by gRPC's interop-test-descriptions.md; the messages are those fields of
grpc/testing/messages.proto and empty.proto that its cases use, described here because generated
code would be the only one in this folder.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

SERVICE = "grpc.testing.TestService"
_ECHO_INITIAL, _ECHO_TRAILING = "x-grpc-test-echo-initial", "x-grpc-test-echo-trailing-bin"

_Field = descriptor_pb2.FieldDescriptorProto
_INT, _BYTES, _TEXT = _Field.TYPE_INT32, _Field.TYPE_BYTES, _Field.TYPE_STRING
_MESSAGES: dict[str, Sequence[tuple[int, str, int | str]]] = {
    "Empty": [],
    "Payload": [(1, "type", _INT), (2, "body", _BYTES)],
    "EchoStatus": [(1, "code", _INT), (2, "message", _TEXT)],
    "SimpleRequest": [
        (2, "response_size", _INT),
        (3, "payload", "Payload"),
        (7, "response_status", "EchoStatus"),
    ],
    "SimpleResponse": [(1, "payload", "Payload")],
    "StreamingInputCallRequest": [(1, "payload", "Payload")],
    "StreamingInputCallResponse": [(1, "aggregated_payload_size", _INT)],
    "ResponseParameters": [(1, "size", _INT), (2, "interval_us", _INT)],
    "StreamingOutputCallRequest": [
        (2, "response_parameters", "*ResponseParameters"),
        (3, "payload", "Payload"),
        (7, "response_status", "EchoStatus"),
    ],
    "StreamingOutputCallResponse": [(1, "payload", "Payload")],
}
"""Fields by number; a text is another message, with a `*` before it a list of them."""


def _classes() -> dict[str, Any]:
    package = "penstock.interop"  # The wire format has no names, and this one clashes with none.
    file = descriptor_pb2.FileDescriptorProto(
        name="interop.proto", package=package, syntax="proto3"
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, field_name, kind in fields:
            field = message.field.add(name=field_name, number=number, label=_Field.LABEL_OPTIONAL)
            if isinstance(kind, str):
                field.type = _Field.TYPE_MESSAGE
                field.type_name = f".{package}.{kind.lstrip('*')}"
                if kind.startswith("*"):
                    field.label = _Field.LABEL_REPEATED
            else:
                field.type = _Field.Type.ValueType(kind)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
        for name in _MESSAGES
    }


MESSAGES: dict[str, Any] = _classes()
"""The classes of the messages, by name."""
Empty, Payload = MESSAGES["Empty"], MESSAGES["Payload"]


def _zeros(size: int) -> Any:
    return Payload(body=bytes(size))


async def _echo_metadata(context: Any) -> None:
    found = dict(context.invocation_metadata())
    if _ECHO_INITIAL in found:
        await context.send_initial_metadata(((_ECHO_INITIAL, found[_ECHO_INITIAL]),))
    if _ECHO_TRAILING in found:
        context.set_trailing_metadata(((_ECHO_TRAILING, found[_ECHO_TRAILING]),))


def _echo_status(request: Any, context: Any) -> None:
    if request.HasField("response_status"):
        code = request.response_status.code
        context.set_code(next(each for each in grpc.StatusCode if each.value[0] == code))
        context.set_details(request.response_status.message)


async def _empty_call(request: Any, context: Any) -> Any:
    return Empty()


async def _unary_call(request: Any, context: Any) -> Any:
    await _echo_metadata(context)
    _echo_status(request, context)
    return MESSAGES["SimpleResponse"](payload=_zeros(request.response_size))


async def _streaming_output_call(request: Any, context: Any) -> AsyncIterator[Any]:
    for wanted in request.response_parameters:
        await asyncio.sleep(wanted.interval_us / 1e6)
        yield MESSAGES["StreamingOutputCallResponse"](payload=_zeros(wanted.size))


async def _streaming_input_call(requests: AsyncIterator[Any], context: Any) -> Any:
    total = 0
    async for request in requests:
        total += len(request.payload.body)
    return MESSAGES["StreamingInputCallResponse"](aggregated_payload_size=total)


async def _full_duplex_call(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
    await _echo_metadata(context)
    async for request in requests:
        async for response in _streaming_output_call(request, context):
            yield response
        if request.HasField("response_status"):
            _echo_status(request, context)
            return


_METHODS: dict[str, tuple[str, Any, str, str]] = {
    "EmptyCall": ("unary_unary", _empty_call, "Empty", "Empty"),
    "UnaryCall": ("unary_unary", _unary_call, "SimpleRequest", "SimpleResponse"),
    "StreamingOutputCall": (
        "unary_stream",
        _streaming_output_call,
        "StreamingOutputCallRequest",
        "StreamingOutputCallResponse",
    ),
    "StreamingInputCall": (
        "stream_unary",
        _streaming_input_call,
        "StreamingInputCallRequest",
        "StreamingInputCallResponse",
    ),
    "FullDuplexCall": (
        "stream_stream",
        _full_duplex_call,
        "StreamingOutputCallRequest",
        "StreamingOutputCallResponse",
    ),
}
"""By name: the kind, the method, and what it takes and gives; `UnimplementedCall` is missing."""


def add_to(server: Any) -> None:
    """Add the service to a server that was not started yet."""
    handlers = {
        name: getattr(grpc, f"{kind}_rpc_method_handler")(
            method, MESSAGES[takes].FromString, MESSAGES[gives].SerializeToString
        )
        for name, (kind, method, takes, gives) in _METHODS.items()
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))


def stubs(channel: Any) -> dict[str, Any]:
    """Return the service's methods over a channel of grpcio, sync or aio, by name."""
    return {
        name: getattr(channel, kind)(
            f"/{SERVICE}/{name}",
            request_serializer=MESSAGES[takes].SerializeToString,
            response_deserializer=MESSAGES[gives].FromString,
        )
        for name, (kind, _, takes, gives) in _METHODS.items()
    }
