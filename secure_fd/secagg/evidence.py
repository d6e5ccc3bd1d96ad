"""Who was in a sum, in the words of those who were: what an auditor checks after the round.

Before any client gives a share it has seen a threshold of the committee sign the cohort, or who of
it is left. These signatures name the terms of the sum as well, and through their subject all that
the server told everybody before. Nothing here is secret.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from secure_fd.errors import PeerError
from secure_fd.secagg import messages
from secure_fd.secagg.session import Floors, Group, RoundScope, Session, encode_set


@dataclass(frozen=True, slots=True)
class SignedSurvivors:
    """A cohort, who of it is in the sum, and the committee's signatures of both, by signer.

    members, view, seed: of the group that summed, as in `Group`. All numbers ascend.
    """

    members: tuple[int, ...]
    view: bytes = field(repr=False)
    seed: bytes = field(repr=False)
    cohort: tuple[int, ...]
    survivors: tuple[int, ...]
    signatures: Mapping[int, bytes] = field(repr=False)

    @classmethod
    def of(
        cls,
        scope: RoundScope,
        group: Group,
        cohort: tuple[int, ...],
        survivors: tuple[int, ...],
        signatures: Mapping[int, bytes],
    ) -> Self:
        """Of a round that ended with its sum. What is no signature of the committee is left out."""
        made = cls(group.members, group.view, group.seed, cohort, survivors, signatures)
        valid = {
            signer: signatures[signer]
            for signer in group.committee
            if signer in signatures and not made._fault(scope, group, signer)
        }
        return cls(group.members, group.view, group.seed, cohort, survivors, valid)

    def check(self, scope: RoundScope) -> None:
        """PeerError unless enough survivors of one committee signed these sets under these terms.

        Every signature must verify: one that does not was put there.
        """
        group, alive = self._group(scope.session), set(self.survivors)
        if not alive <= set(self.cohort) or not set(self.cohort) <= set(self.members):
            raise PeerError("the survivors are not of the cohort, or it is not of the members")
        if not group.reaches(self.survivors) or len(alive) < scope.terms.noise.survivors:
            raise PeerError(f"{len(alive)} survivors are too few for a sum")
        if not set(self.signatures) <= alive & set(group.committee):
            raise PeerError("a signature is of nobody in the committee who is in the sum")
        for signer in self.signatures:
            fault = self._fault(scope, group, signer)
            if fault:
                raise PeerError(fault)
        if len(self.signatures) < group.threshold:
            count, need = len(self.signatures), group.threshold
            raise PeerError(f"{count} of the committee signed the survivors; {need} are needed")

    def _group(self, session: Session) -> Group:
        least = Floors().members(session)
        if len(self.members) < least or not set(self.members) <= set(session.roster):
            raise PeerError(f"a group is of {least} or more of the roster, and of nobody else")
        return Group(session, self.members, self.view, self.seed)

    def _fault(self, scope: RoundScope, group: Group, signer: int) -> str:
        """What is wrong with a signature; empty where it verifies."""
        cohort = encode_set(self.cohort, group.members)
        text = messages.cohort_text(scope, signer, group, cohort)
        if self.survivors != self.cohort:
            survivors = encode_set(self.survivors, group.members)
            text = messages.survivor_text(scope, signer, group, cohort, survivors)
        what = f"the survivors by site {signer}"
        try:
            scope.session.roster[signer].verify(self.signatures[signer], text, what)
        except PeerError as error:
            return str(error)
        return ""
