"""FedMD (Li and Wang, 2019): every client answers every proxy and the server averages.

A round is theirs: communicate, aggregate, distribute, digest (steps towards the consensus), then
revisit (steps on the private records), so a network is measured when it has just revisited.

Two choices are not theirs. The scores that clients share are softmax outputs, as in the comparison
of the Selective-FD paper, or one-hot labels, and digesting lowers a cross entropy; the authors'
code shares logits and lowers an absolute error. They pre-train on labelled public data; the
proxies here have no labels, so the warm-up on private records takes that place.
"""

from dataclasses import dataclass
from typing import ClassVar

from secure_fd.methods.base import Labels
from secure_fd.methods.votes import VotingMethod


@dataclass(frozen=True, slots=True)
class FedMD(VotingMethod):
    """labels: what clients share.

    >>> FedMD("hard").name
    'FedMD hard'
    """

    title: ClassVar[str] = "FedMD"
    local_steps_last: ClassVar[bool] = True
    """Digest, then revisit: the last two of the five steps of a round in the paper."""

    labels: Labels = "soft"
