"""What a primary and a copy say to each other is the same on both ends of the wire."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import Malformed
from penstock.log.segments import Place
from pump.replication.protocol.chain import Link
from pump.replication.protocol.messages import (
    Append,
    Ask,
    Confirmed,
    Damaged,
    Have,
    Name,
    Refusal,
    ReplicaState,
    SignOfLife,
    decode_answer,
    decode_request,
    encode_answer,
    encode_request,
)

NUMBERS = st.integers(0, (1 << 63) - 1)
IDS = st.integers(0, (1 << 24) - 1)
LINKS = st.builds(Link, NUMBERS, NUMBERS, NUMBERS, IDS)
CHAINS = st.lists(LINKS, max_size=5).map(tuple)
NAMES = st.builds(Name, NUMBERS, st.text(), st.text())


@st.composite
def appends(draw: st.DrawFn) -> tuple[Append, bytes]:
    data, offset = draw(st.binary(max_size=50)), draw(st.integers(0, 1 << 40))
    previous, instead_of = draw(st.none() | LINKS), draw(st.none() | CHAINS)
    request = Append(
        *(draw(NUMBERS), draw(NUMBERS), draw(NUMBERS), offset, offset + len(data)),
        previous=previous,
        instead_of=instead_of,
        needed=draw(NUMBERS),
        damage=draw(NUMBERS),
        epoch_id=draw(IDS),
    )
    return request, data


@given(NAMES, appends())
def test_an_append_arrives_as_it_was_sent(name: Name, sent: tuple[Append, bytes]) -> None:
    request, data = sent
    assert decode_request(encode_request(name, request, data)) == (name, request, data)


ASKS = st.builds(Ask, NUMBERS, st.booleans(), st.integers(0, 1))


@given(NAMES, ASKS | st.builds(SignOfLife, NUMBERS))
def test_a_question_and_a_sign_of_life_arrive_as_such(name: Name, sent: Ask | SignOfLife) -> None:
    arrived = decode_request(encode_request(name, sent))
    assert arrived == (name, sent, b"")
    assert type(arrived[1]) is type(sent)


@given(
    NUMBERS,
    st.none()
    | st.builds(ReplicaState, st.just(0), CHAINS)
    | st.builds(Have, st.just(0), st.builds(Place, NUMBERS, NUMBERS), NUMBERS)
    | st.builds(Damaged, st.just(0), NUMBERS)
    | st.builds(Refusal, NUMBERS),
)
def test_an_answer_arrives_as_it_was_sent(
    epoch: int, answer: ReplicaState | Have | Damaged | Refusal | None
) -> None:
    if isinstance(answer, ReplicaState | Have | Damaged):
        answer = answer._replace(epoch=epoch)
    arrived = decode_answer(encode_answer(epoch, answer))
    assert arrived == answer
    assert type(arrived) is type(answer)


@given(NUMBERS, st.integers(1), st.builds(ReplicaState, NUMBERS, CHAINS))
def test_a_position_confirms_the_question_that_it_answers_whatever_it_names(
    epoch: int, number: int, older: ReplicaState
) -> None:
    request, confirmed = Ask(epoch, confirms=number), Confirmed(epoch, number)
    for answer in (confirmed, older):
        assert decode_answer(encode_answer(epoch, answer), request) == confirmed


def test_bytes_that_changed_on_the_way_are_refused_with_their_place() -> None:
    request = Append(4, 7, 4, 100, 105, None, None, 0)
    sent = encode_request(Name(77, "pump-1", "d1"), request, b"bytes")
    assert decode_request(sent)[2] == b"bytes"
    with pytest.raises(Malformed, match="segment 7 from offset 100"):
        decode_request(sent.replace(b"bytes", b"bytez"))
