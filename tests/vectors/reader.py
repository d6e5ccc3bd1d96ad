"""Reads secagg.json as a second implementation would, and checks that all of it hangs together.

Nothing of secure_fd is imported: what holds here holds for whoever follows docs/protocol.md.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from tests.vectors import independent as plain
from tests.vectors.independent import SERVER
from tests.vectors.round_reader import Drawn, Json, RoundReader, raw


def check(content: Json) -> None:
    """AssertionError, or a library's error, where any value is not what the others make it."""
    assert content["version"] == plain.VERSION
    for case in content["lanes"]:
        check_lanes(case)
    check_sharing(content["shamir"])
    check_graph(content["graph"])
    check_joint(content["joint"])
    check_hybrid_channel(content["hybrid_channel"])
    SessionReader(content).check()


def check_lanes(case: Json) -> None:
    shape, values = (case["clients"], case["bound"], case["room"]), case["values"]
    assert case["bits"] == plain.lane_bits(*shape)
    assert case["lanes"] == 64 // case["bits"]
    words = plain.words_of(raw(case["words"]))
    assert plain.pack(values, *shape) == words
    assert plain.unpack(words, len(values), *shape) == values


def check_sharing(case: Json) -> None:
    t = case["threshold"]
    drawn = [
        plain.element(d) for d in plain.pieces(plain.insecure_randomness(case["seed"], 32 * t), 32)
    ]
    secret, coefficients = drawn[0], [*drawn[1:], drawn[0]]
    assert raw(case["secret"]) == secret.to_bytes(32, "big")
    shares = [plain.evaluate(coefficients, point) for point in case["points"]]
    assert [raw(share) for share in case["shares"]] == [s.to_bytes(32, "big") for s in shares]
    weights = [int(weight, 16) for weight in case["weights_of_last_three"]]
    last = dict(zip(case["points"][-t:], shares[-t:], strict=True))
    assert plain.combine(last) == secret
    assert weights == [plain.combine({x: int(x == at) for x in last}) for at in last]


def check_graph(case: Json) -> None:
    ring = plain.shuffled(range(case["members"]), case["degree"], raw(case["seed"]))
    near = plain.ring_neighbours(ring, case["degree"])
    assert case["neighbours"] == [near[member] for member in range(case["members"])]


def check_joint(case: Json) -> None:
    seed = plain.joint_seed([raw(nonce) for nonce in case["nonces"]])
    assert raw(case["seed"]) == seed
    for draw in case["draws"]:
        found = plain.drawn_proxies(seed, draw["round"], draw["population"], draw["count"])
        assert draw["indices"] == found


def check_hybrid_channel(case: Json) -> None:
    session, low, high = raw(case["session"]), case["low"], case["high"]
    agreed = plain.exchange(
        raw(case["low_private"]), plain.agreement_public(raw(case["high_private"]))
    )
    secret = agreed + raw(case["kem_secret"])
    keys = plain.channel_keys(
        session, low, high, secret, raw(case["view"]), raw(case["ciphertext"])
    )
    assert keys == (raw(case["upward"]), raw(case["downward"]), raw(case["pair"]))
    found = plain.pair_secret(session, case["round"], low, high, keys[2])
    assert raw(case["pair_secret"]) == found
    sealed = raw(case["sealed_upward"])
    assert plain.unseal(keys[0], case["round"], sealed, b"context") == b"text"


@dataclass
class SessionReader:
    """Goes through the set-up and both rounds, message by message."""

    content: Json

    def check(self) -> None:
        """See the module."""
        self._read_session()
        self._check_setup()
        for index in self.content["prepared"]:
            self._check_prepared(int(index))
        for index, case in enumerate(self.content["rounds"]):
            RoundReader(self, case, first=index == 0).check()

    def _read_session(self) -> None:
        case = self.content["session"]
        self.members = [client["client"] for client in case["clients"]]
        n = len(self.members)
        by_number = dict(zip(self.members, case["clients"], strict=True))
        self.identities = {k: raw(c["identity"]) for k, c in by_number.items()}
        self.randomness = {
            k: plain.insecure_randomness(c["seed"], 2048) for k, c in by_number.items()
        }
        for k, client in by_number.items():
            assert raw(client["identity_secret"]) == self.randomness[k][:32]
            assert self.identities[k] == plain.identity_public(self.randomness[k][:32])
        numbers = (case["degree"], case["threshold"], case["hybrid"])
        parts = (raw(case["configuration"]), raw(case["proxies"]))
        self.id = plain.session_id(raw(case["nonce"]), *numbers, self.identities, *parts)
        assert (case["modulus_bits"], raw(case["id"])) == (64, self.id)
        self.threshold = 2 * n // 3 + 1
        setup = self.content["setup"]
        assert setup["threshold"] == setup["quorum"] == self.threshold

    def _check_setup(self) -> None:
        case = self.content["setup"]
        nonces = {k: drawn[32:64] for k, drawn in self.randomness.items()}
        privates = {k: drawn[64:96] for k, drawn in self.randomness.items()}
        assert [raw(nonce) for nonce in case["nonces"]] == list(nonces.values())
        assert [raw(private) for private in case["channel_privates"]] == list(privates.values())
        publics = {k: plain.agreement_public(private) for k, private in privates.items()}
        commitments = {
            k: plain.sha(plain.context("nonce commitment", self.id, b"", k), nonce)
            for k, nonce in nonces.items()
        }
        listed = b"".join(
            k.to_bytes(4, "big") + plain.sha(publics[k]) + commitments[k] for k in self.members
        )
        self.view = plain.view_of(self.id, listed)
        assert raw(case["view"]) == self.view
        assert raw(case["seed"]) == plain.joint_seed(list(nonces.values()))
        came = self.read(case["messages"], None)
        reveals = b""
        for k in self.members:
            body = came["JOIN", k, SERVER]
            text = plain.context("join signature", self.id, b"", k)
            assert body[:-64] == publics[k] + commitments[k]
            plain.verify(self.identities[k], body[-64:], text + body[:-64])
            assert came["MEMBERS", SERVER, k] == listed
            body = came["REVEAL", k, SERVER]
            text = plain.context("reveal signature", self.id, b"", k) + self.view
            assert body[:32] == nonces[k]
            plain.verify(self.identities[k], body[32:], text + nonces[k])
            reveals += body
        for k in self.members:
            near = b"".join(publics[peer] for peer in self.members if peer != k)
            assert came["AGREED", SERVER, k] == reveals + near
        self._check_channels(case["channels"], privates, publics)

    def _check_channels(
        self, channels: Sequence[Json], privates: Mapping[int, bytes], publics: Mapping[int, bytes]
    ) -> None:
        self.channels = {}
        for case in channels:
            low, high = case["low"], case["high"]
            agreed = plain.exchange(privates[low], publics[high])
            keys = plain.channel_keys(self.id, low, high, agreed, self.view)
            assert keys == (raw(case["upward"]), raw(case["downward"]), raw(case["pair"]))
            self.channels[low, high] = keys
        assert sorted(self.channels) == self.pairs

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """All of a lower and a higher number."""
        return [(low, high) for low in self.members for high in self.members if low < high]

    def read(
        self, messages: Sequence[Json], index: int | None
    ) -> dict[tuple[str, int, int], bytes]:
        """Bodies by type, sender and receiver; the frames are checked."""
        bodies = {}
        for m in messages:
            at = (m["type"], m["from"], m["to"])
            kind, session, number, sender, bodies[at] = plain.read_frame(raw(m["message"]))
            assert (kind, session, sender) == (m["type"], self.id, m["from"])
            assert number == (plain.SETUP if index is None else index)
        assert len(bodies) == len(messages)
        return bodies

    def _check_prepared(self, index: int) -> None:
        for client, case in zip(self.members, self.content["prepared"][str(index)], strict=True):
            drawn = asdict(self.draw(index, client))
            assert {name: unhexed(value) for name, value in case.items()} == drawn

    def draw(self, index: int, client: int) -> Drawn:
        """Secrets, keys and shares of a round, from the randomness in the order of its use.

        Shares are at the points 1, 2, ... in the order of the holders, here all members.
        """
        t, session = self.threshold, self.id
        at = 96 + (index - self.content["rounds"][0]["index"]) * 64 * t
        pieces = plain.pieces(self.randomness[client][at : at + 64 * t], 32)
        root, seed, *coefficients = map(plain.element, pieces)
        shares = [
            [
                plain.evaluate(polynomial, at + 1).to_bytes(32, "big")
                for at in range(len(self.members))
            ]
            for polynomial in ([*coefficients[: t - 1], root], [*coefficients[t - 1 :], seed])
        ]
        encoded = root.to_bytes(32, "big")
        private = plain.round_private(session, index, client, encoded)
        return Drawn(
            root=encoded,
            seed=seed.to_bytes(32, "big"),
            round_private=private,
            round_public=plain.agreement_public(private),
            commitment=plain.commit_seed(session, index, client, seed.to_bytes(32, "big")),
            vault_key=plain.vault_key(session, index, client, encoded),
            root_shares=shares[0],
            seed_shares=shares[1],
        )


def unhexed(value: str | list[str]) -> bytes | list[bytes]:
    """The bytes of a field."""
    return raw(value) if isinstance(value, str) else [raw(piece) for piece in value]
