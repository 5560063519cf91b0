"""Other people's clients and tests of conformance against our gRPC server, plain and over TLS.

h2spec and grpc-go's client run with the long sweeps: `deploy/go.sh` builds them.
"""

import asyncio
import re
import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from penstock.local.process import built, program
from tests.kit.http2 import interop_service
from tests.kit.http2.front_process import ANSWER, FAST, FrontProcess
from tests.kit.http2.interop_service import MESSAGES, Payload
from tests.kit.http2.raw_peer import RawPeer
from tests.kit.servers.authority import Pair
from tests.kit.wait import eventually

_WAIT_S = 60
_OPTIONS = [("grpc.use_local_subchannel_pool", 1)]
INTEROP_CASES = (
    "empty_unary",
    "large_unary",
    "client_streaming",
    "server_streaming",
    "ping_pong",
    "empty_stream",
    "timeout_on_sleeping_server",
    "cancel_after_begin",
    "cancel_after_first_response",
    "status_code_and_message",
    "special_status_message",
    "unimplemented_method",
    "unimplemented_service",
    "custom_metadata",
)
"""Of grpc-go's client, all but compression of answers and what needs Google's cloud."""
SPECIAL_TEXT = "\t\ntest with whitespace\r\nand Unicode BMP ☺ and non-BMP 😈\t\n"
ECHO, ECHO_BIN = "x-grpc-test-echo-initial", "x-grpc-test-echo-trailing-bin"


@pytest.fixture(params=["plain", "TLS"])
def credentials(
    request: pytest.FixtureRequest, tls_front: tuple[FrontProcess, Pair]
) -> tuple[str, grpc.ChannelCredentials | None]:
    front, pair = tls_front
    if request.param == "plain":
        return front.address, None
    return f"127.0.0.1:{front.tls_port}", grpc.ssl_channel_credentials(pair.ca.read_bytes())


@pytest.fixture
def stubs(credentials: tuple[str, grpc.ChannelCredentials | None]) -> Iterator[dict[str, Any]]:
    address, secrets = credentials
    channel = (
        grpc.secure_channel(address, secrets, options=_OPTIONS)
        if secrets is not None
        else grpc.insecure_channel(address, options=_OPTIONS)
    )
    with channel:
        yield interop_service.stubs(channel)


def output_request(*sizes: int, interval_us: int = 0) -> Any:
    wanted = [MESSAGES["ResponseParameters"](size=size, interval_us=interval_us) for size in sizes]
    return MESSAGES["StreamingOutputCallRequest"](response_parameters=wanted)


SIZES, INPUT_SIZES = (31_415, 9, 2_653, 58_979), (27_182, 8, 1_828, 45_904)


def test_grpcio_gets_large_and_empty_answers(stubs: dict[str, Any]) -> None:
    assert stubs["EmptyCall"](MESSAGES["Empty"](), timeout=_WAIT_S) == MESSAGES["Empty"]()
    large = MESSAGES["SimpleRequest"](response_size=314_159, payload=Payload(body=bytes(271_828)))
    answer = stubs["UnaryCall"](large, timeout=_WAIT_S)
    assert len(answer.payload.body) == 314_159


def test_grpcio_streams_in_both_directions(stubs: dict[str, Any]) -> None:
    inputs = [
        MESSAGES["StreamingInputCallRequest"](payload=Payload(body=bytes(size)))
        for size in INPUT_SIZES
    ]
    total = stubs["StreamingInputCall"](iter(inputs), timeout=_WAIT_S)
    assert total.aggregated_payload_size == sum(INPUT_SIZES)
    answers = stubs["StreamingOutputCall"](output_request(*SIZES), timeout=_WAIT_S)
    assert [len(answer.payload.body) for answer in answers] == list(SIZES)
    requests = [output_request(size) for size in SIZES]
    answers = stubs["FullDuplexCall"](iter(requests), timeout=_WAIT_S)
    assert [len(answer.payload.body) for answer in answers] == list(SIZES)
    assert list(stubs["FullDuplexCall"](iter(()), timeout=_WAIT_S)) == []


def test_grpcio_gets_metadata_status_and_text_back(stubs: dict[str, Any]) -> None:
    sent = [(ECHO, "test_initial_metadata_value"), (ECHO_BIN, b"\xab\xab\xab")]
    answer, call = stubs["UnaryCall"].with_call(
        MESSAGES["SimpleRequest"](response_size=1), metadata=sent, timeout=_WAIT_S
    )
    assert dict(call.initial_metadata())[ECHO] == sent[0][1]
    assert dict(call.trailing_metadata())[ECHO_BIN] == sent[1][1]
    assert len(answer.payload.body) == 1
    status = MESSAGES["EchoStatus"](code=2, message=SPECIAL_TEXT)
    with pytest.raises(grpc.RpcError) as caught:
        stubs["UnaryCall"](MESSAGES["SimpleRequest"](response_status=status), timeout=_WAIT_S)
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.UNKNOWN, SPECIAL_TEXT)


def test_a_deadline_and_a_cancellation_end_a_call_of_grpcio(stubs: dict[str, Any]) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        list(stubs["StreamingOutputCall"](output_request(1, interval_us=50_000_000), timeout=0.2))
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    call = stubs["StreamingOutputCall"](output_request(1, *[1] * 1000, interval_us=1000))
    assert len(next(call).payload.body) == 1
    call.cancel()
    with pytest.raises(grpc.RpcError) as caught:
        list(call)
    assert caught.value.code() is grpc.StatusCode.CANCELLED


@pytest.mark.parametrize(
    "path", [f"/{interop_service.SERVICE}/UnimplementedCall", "/grpc.testing.None/Call"]
)
def test_a_method_that_is_not_there_is_unimplemented(
    credentials: tuple[str, grpc.ChannelCredentials | None], path: str
) -> None:
    address, secrets = credentials
    channel = (
        grpc.insecure_channel(address, options=_OPTIONS)
        if secrets is None
        else grpc.secure_channel(address, secrets, options=_OPTIONS)
    )
    with channel, pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(path)(b"", timeout=_WAIT_S)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_hundred_calls_of_grpc_aio_at_once_all_get_their_answers(
    credentials: tuple[str, grpc.ChannelCredentials | None],
) -> None:
    address, secrets = credentials

    async def call_all() -> list[tuple[int, bytes]]:
        opened = (
            grpc.aio.insecure_channel(address, options=_OPTIONS)
            if secrets is None
            else grpc.aio.secure_channel(address, secrets, options=_OPTIONS)
        )
        async with opened as channel:
            stubs = interop_service.stubs(channel)

            async def call(size: int) -> tuple[int, bytes]:
                found = [
                    len(each.payload.body)
                    async for each in stubs["FullDuplexCall"](
                        iter([output_request(size)]), timeout=_WAIT_S
                    )
                ]
                fast: bytes = await channel.unary_unary(FAST)(bytes(size), timeout=_WAIT_S)
                return found[0], fast

            return await asyncio.gather(*(call(size) for size in range(1, 101)))

    assert asyncio.run(call_all()) == [(size, ANSWER) for size in range(1, 101)]


def curl(*arguments: str) -> str:
    command = [program("curl"), "-sS", "-i", "--max-time", str(_WAIT_S), *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.decode("latin-1")


@pytest.mark.parametrize("how", ["plain", "TLS"])
def test_curl_gets_a_grpc_answer_and_a_page_for_what_is_none(
    tls_front: tuple[FrontProcess, Pair], tmp_path: Path, how: str
) -> None:
    front, pair = tls_front
    body = tmp_path / "body"
    body.write_bytes(b"\x00\x00\x00\x00\x01x")
    start = f"http://127.0.0.1:{front.port}"
    options = ["--http2-prior-knowledge"]
    if how == "TLS":
        start, options = f"https://127.0.0.1:{front.tls_port}", ["--http2", "--cacert"]
        options.append(str(pair.ca))
    grpc_options = ["-H", "content-type: application/grpc", "-H", "te: trailers"]
    answer = curl(*options, *grpc_options, "--data-binary", f"@{body}", start + FAST)
    assert answer.startswith("HTTP/2 200")
    assert "grpc-status: 0" in answer
    assert ANSWER.decode() in answer
    page = curl(*options, start + "/")
    assert page.startswith("HTTP/2 405")
    assert "\r\n\r\nthis port speaks gRPC" in page
    assert curl(*options, "-d", "x=1", start + FAST).startswith("HTTP/2 415")


def test_a_plain_port_says_to_a_caller_by_http_1_what_it_is(
    tls_front: tuple[FrontProcess, Pair],
) -> None:
    front, _ = tls_front
    before = len(front.log_text())
    page = curl("--http1.1", f"http://127.0.0.1:{front.port}/metrics")
    assert page.startswith("HTTP/1.1 4")
    assert "gRPC" in page
    (line,) = front.log_text()[before:].splitlines()
    assert "HTTP/1" in line


def the_line(front: FrontProcess, before: int) -> str:
    """Return the only line in the log beyond what was there, which may come after the close."""
    eventually(lambda: front.log_text()[before:].endswith("\n"))
    (line,) = front.log_text()[before:].splitlines()
    return line


def test_tls_to_a_plain_port_and_the_reverse_are_one_line_each_in_the_log(
    tls_front: tuple[FrontProcess, Pair],
) -> None:
    front, pair = tls_front
    context = ssl.create_default_context(cafile=str(pair.ca))
    before = len(front.log_text())
    with pytest.raises(OSError, match=r"."):
        RawPeer("127.0.0.1", front.port, tls=context)
    assert "TLS" in the_line(front, before)
    before = len(front.log_text())
    with RawPeer("127.0.0.1", front.tls_port) as peer:
        peer.until_closed()
    assert "TLS handshake" in the_line(front, before)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["plain", "TLS"])
@pytest.mark.parametrize("case", INTEROP_CASES)
def test_grpc_go_finds_its_interoperability_case_right(
    tls_front: tuple[FrontProcess, Pair], case: str, how: str
) -> None:
    front, pair = tls_front
    flags = [f"--server_port={front.port}"]
    if how == "TLS":
        flags = [f"--server_port={front.tls_port}", "--use_tls", "--use_test_ca"]
        flags += [f"--ca_file={pair.ca}", "--server_host_override=localhost"]
    command = [built("conformance", "grpc-interop"), "--server_host=127.0.0.1", *flags]
    ran = subprocess.run(
        [*command, f"--test_case={case}"],
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=_WAIT_S,
    )
    assert ran.returncode == 0, ran.stdout.decode()


H2SPEC_LIMITS = {"header_table_bytes": 4096, "frame_bytes_max": 16_384}
"""What h2spec takes for granted: HTTP/2's defaults.

It is of RFC 7540, and ignores a smaller table, for which RFC 9113 has its blocks refused.
"""
_CLOSING = re.compile(r"(\d+) tests, (\d+) passed, (\d+) skipped, (\d+) failed")


@pytest.mark.slow
@pytest.mark.parametrize("how", ["plain", "TLS"])
def test_h2spec_finds_nothing_wrong(
    front_factory: Callable[..., FrontProcess], tls_front: tuple[FrontProcess, Pair], how: str
) -> None:
    front = front_factory(pair=tls_front[1], **H2SPEC_LIMITS)
    target = ["-p", str(front.port)]
    if how == "TLS":
        target = ["-p", str(front.tls_port), "--tls", "--insecure"]
    ran = subprocess.run(
        [built("conformance", "h2spec"), "--strict", "-h", "127.0.0.1", "-o", "10", *target],
        check=False,
        stdout=subprocess.PIPE,
        timeout=600,
    )
    text = ran.stdout.decode(errors="replace")
    found = _CLOSING.search(text)
    assert found, text
    total, passed, skipped, failed = map(int, found.groups())
    assert (passed, skipped, failed) == (total, 0, 0), text.partition("Failures:")[2]
    assert total > 140
