"""What a server makes up, from what clients sent it and from keys of its own."""

from collections.abc import Collection, Mapping
from typing import Final

from secure_fd.crypto.primitives import AgreementKey, IdentityKey, insecure_bytes
from secure_fd.secagg import messages
from secure_fd.secagg.client import ClientRound
from secure_fd.secagg.messages import Join, Member, Prepare, Relayed, commit
from secure_fd.secagg.session import Group, RoundScope, encode_set
from tests.secagg_cohort import Cohort

Clients = tuple[int, ...]
SERVER_KEY: Final = AgreementKey.generate(insecure_bytes(99))
SERVER_NONCE: Final = bytes(range(32))


def flip(data: bytes, at: int = -1) -> bytes:
    """The data with one bit of one byte flipped."""
    changed = bytearray(data)
    changed[at] ^= 1
    return bytes(changed)


def forged_member(cohort: Cohort, client: int) -> Member:
    """A client whom the server wants to play: with keys and a nonce of the server's own."""
    commitment = commit(cohort.session, client, SERVER_NONCE)
    return Join(client, SERVER_KEY.public, commitment, b"").member


def take_prepare(machine: ClientRound) -> Prepare:
    """What a client that starts a round prepares."""
    message, degree = machine.start(), machine._enrolment.group.degree
    assert message is not None
    return messages.decode_prepare(message, machine.scope.place, machine.number, degree)


def line(prepared: Mapping[int, Prepare], group: Group, client: int, peer: int) -> Relayed:
    """What an honest server relays of a peer to a client."""
    sent, at = prepared[peer], group.neighbours(peer).index(client)
    size = messages.SEALED_BYTES
    return Relayed(sent.key, sent.sealed[size * at : size * (at + 1)])


def lines(
    prepared: Mapping[int, Prepare], group: Group, client: int, cohort: Collection[int]
) -> dict[int, Relayed]:
    """The same for all of a client's neighbours in the cohort."""
    near = [peer for peer in group.neighbours(client) if peer in cohort]
    return {peer: line(prepared, group, client, peer) for peer in near}


def cohort_message(
    relayed: Mapping[int, Relayed], cohort: Collection[int], machine: ClientRound
) -> bytes:
    """COHORT, with these lines."""
    body = b"".join(relayed[peer].key + relayed[peer].sealed for peer in sorted(relayed))
    members = machine._enrolment.group.members
    return messages.encode_cohort(encode_set(cohort, members), body, machine.scope.place)


def survivors_message(
    survivors: Collection[int], signatures: Mapping[int, bytes], machine: ClientRound
) -> bytes:
    """SURVIVORS, with these signatures."""
    chosen = encode_set(survivors, machine._enrolment.group.members)
    return messages.encode_survivors(chosen, listed(signatures), machine.scope.place)


def signatures_message(signatures: Mapping[int, bytes], machine: ClientRound) -> bytes:
    """SIGNATURES, with these."""
    return messages.encode_signatures(listed(signatures), machine.scope.place)


def listed(signatures: Mapping[int, bytes]) -> bytes:
    """A list of signatures, ascending by client."""
    return b"".join(messages.signature_entry(k, signatures[k]) for k in sorted(signatures))


def sign_story(
    identity: IdentityKey,
    scope: RoundScope,
    group: Group,
    client: int,
    cohort: Clients,
    survivors: Clients,
) -> bytes:
    """What a client signs that has heard this: of the cohort, or of cohort and survivors."""
    everyone, left = (encode_set(chosen, group.members) for chosen in (cohort, survivors))
    if cohort == survivors:
        return identity.sign(messages.cohort_text(scope, client, group, everyone))
    return identity.sign(messages.survivor_text(scope, client, group, everyone, left))
