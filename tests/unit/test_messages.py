import struct
from collections.abc import Callable

import numpy as np
import pytest

from secure_fd.errors import ConfigurationError, PeerError
from secure_fd.knowledge import WordArray
from secure_fd.secagg import messages
from secure_fd.secagg.messages import Advert
from secure_fd.secagg.session import RoundScope, RoundTerms
from tests.secagg_cohort import Cohort

COHORT = Cohort(3)
SCOPE = RoundScope(COHORT.session, RoundTerms(index=7, length=100, bound=5))
SERVER = 2**32 - 2
WORDS: WordArray = np.arange(SCOPE.words, dtype=np.uint64) * np.uint64(2**57 + 1)
ADVERTS = [
    Advert.signed(SCOPE, client, bytes([client + 1]) * 32, identity)
    for client, identity in COHORT.identities.items()
]

Decode = Callable[[bytes], object]
CASES: dict[str, tuple[bytes, Decode]] = {
    "advert": (
        messages.encode_advert(ADVERTS[1], SCOPE),
        lambda data: messages.decode_advert(data, SCOPE, 1),
    ),
    "roster": (
        messages.encode_roster(ADVERTS, SCOPE),
        lambda data: messages.decode_roster(data, SCOPE),
    ),
    "masked": (
        messages.encode_masked(WORDS, SCOPE, 1),
        lambda data: messages.decode_masked(data, SCOPE, 1),
    ),
}
every_message = pytest.mark.parametrize(("data", "decode"), CASES.values(), ids=CASES)


def patched(data: bytes, offset: int, value: bytes) -> bytes:
    return data[:offset] + value + data[offset + len(value) :]


def test_messages_come_back_as_sent() -> None:
    assert CASES["advert"][1](CASES["advert"][0]) == ADVERTS[1]
    assert CASES["roster"][1](CASES["roster"][0]) == ADVERTS
    assert messages.decode_masked(CASES["masked"][0], SCOPE, 1).tolist() == WORDS.tolist()


def test_bytes_are_laid_out_as_documented() -> None:
    session = COHORT.session.id
    head = struct.pack(">HHIQ", 1, 1, 1, 7) + session
    assert CASES["advert"][0] == head + ADVERTS[1].key + ADVERTS[1].signature
    entries = (struct.pack(">I", a.client) + a.key + a.signature for a in ADVERTS)
    head = struct.pack(">HHIQ", 1, 2, SERVER, 7) + session
    assert CASES["roster"][0] == head + b"".join(entries)
    head = struct.pack(">HHIQ", 1, 3, 1, 7) + session
    assert CASES["masked"][0] == head + struct.pack(f"<{WORDS.size}Q", *WORDS.tolist())


@every_message
def test_every_other_length_is_refused(data: bytes, decode: Decode) -> None:
    decode(data)
    longer = [data + bytes(extra) for extra in (1, 8, 100)]
    for wrong in [data[:size] for size in range(len(data))] + longer:
        with pytest.raises(PeerError, match=r"shorter than a header|bytes, not"):
            decode(wrong)


@every_message
@pytest.mark.parametrize(
    ("offset", "value", "sentence"),
    [
        (0, b"\0\0", "version 0 is not spoken"),
        (0, b"\0\2", "version 2 is not spoken"),
        (2, b"\0\0", "message type 0 does not exist"),
        (2, b"\0\4", "message type 4 does not exist"),
        (2, b"\xff\xff", "message type 65535 does not exist"),
        (4, b"\0\0\0\2", "names party 2 as its sender"),
        (8, struct.pack(">Q", 6), "round 6, not 7"),
        (16, b"\0" * 32, "another session"),
    ],
)
def test_a_foreign_header_is_refused(
    data: bytes, decode: Decode, offset: int, value: bytes, sentence: str
) -> None:
    with pytest.raises(PeerError, match=sentence):
        decode(patched(data, offset, value))


@every_message
def test_a_message_of_another_known_type_is_refused(data: bytes, decode: Decode) -> None:
    own = data[3]
    for kind in {1, 2, 3} - {own}:
        with pytest.raises(PeerError, match="is due"):
            decode(patched(data, 3, bytes([kind])))


def test_no_single_bit_of_an_advert_can_change() -> None:
    data = CASES["advert"][0]
    messages.decode_advert(data, SCOPE, 1).verify(SCOPE)
    for bit in range(len(data) * 8):
        flipped = patched(data, bit // 8, bytes([data[bit // 8] ^ 1 << bit % 8]))
        with pytest.raises(PeerError):
            messages.decode_advert(flipped, SCOPE, 1).verify(SCOPE)


@pytest.mark.parametrize("order", [[0, 0, 2], [1, 0, 2], [2, 1, 0]])
def test_a_roster_names_each_pinned_client_once_in_order(order: list[int]) -> None:
    with pytest.raises(PeerError, match=r"not the pinned \[0, 1, 2\]"):
        messages.decode_roster(messages.encode_roster([ADVERTS[k] for k in order], SCOPE), SCOPE)


def test_a_roster_with_a_stranger_is_refused() -> None:
    stranger = Advert(9, ADVERTS[2].key, ADVERTS[2].signature)
    with pytest.raises(PeerError, match=r"\[0, 1, 9\]"):
        messages.decode_roster(messages.encode_roster([*ADVERTS[:2], stranger], SCOPE), SCOPE)


@pytest.mark.parametrize(
    "terms",
    [
        RoundTerms(8, 100, 5),
        RoundTerms(7, 101, 5),
        RoundTerms(7, 100, 6),
        RoundTerms(7, 100, 5, b"other proxies"),
    ],
    ids=["index", "length", "bound", "subject"],
)
def test_an_advert_serves_only_the_terms_it_was_signed_for(terms: RoundTerms) -> None:
    ADVERTS[1].verify(SCOPE)
    with pytest.raises(PeerError, match="client 1's advert for round"):
        ADVERTS[1].verify(RoundScope(COHORT.session, terms))


@pytest.mark.parametrize(
    ("index", "length", "bound"),
    [(-1, 1, 1), (2**63, 1, 1), (0, 0, 1), (0, 1, 0), (0, 1, 2**64), (0, 2**28 + 1, 2**60)],
)
def test_terms_out_of_range_are_refused(index: int, length: int, bound: int) -> None:
    RoundScope(COHORT.session, RoundTerms(0, 2**28, 2**60))
    with pytest.raises(ConfigurationError):
        RoundScope(COHORT.session, RoundTerms(index, length, bound))


def test_an_advert_serves_only_its_client_and_session() -> None:
    with pytest.raises(PeerError, match="does not verify"):
        Advert(2, ADVERTS[1].key, ADVERTS[1].signature).verify(SCOPE)
    elsewhere = Cohort(3, nonce=b"another").session
    assert elsewhere.id != COHORT.session.id
    with pytest.raises(PeerError, match="does not verify"):
        ADVERTS[1].verify(RoundScope(elsewhere, SCOPE.terms))
