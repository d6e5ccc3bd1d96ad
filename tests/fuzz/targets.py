"""All fuzz targets: every decoder, and every state of every machine.

A target takes any bytes and gives a word for what came of them. What it takes must encode to the
same bytes; what it refuses must be refused with a PeerError, and a machine that refuses is dead.
Any other exception is a finding.
"""

from tests.fuzz.decoders import Target, decoders
from tests.fuzz.machines import machines
from tests.fuzz.proven import aggregators, proven_decoders


def targets() -> list[Target]:
    """Made anew: machines have a state."""
    return [*decoders(), *machines(), *proven_decoders(), *aggregators()]
