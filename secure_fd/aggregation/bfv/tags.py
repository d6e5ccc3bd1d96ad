"""Tags that add up: proof, under the encryption, of whose inputs a sum is made.

Every ciphertext keeps its last three slots for tags over the field of PLAIN_MODULUS:

    tag_j = sum_i weight_ji * slot_i + pad_j        j = 1, 2, 3

The weights are one secret of all clients for the round, the pads a secret of one client for the
round, the ciphertext and j, known to it and to the key holders. Tags are linear, so adding
ciphertexts adds them, and a key holder that decrypts a sum knows what its tags must be: the
weights on what it decrypted, and the pads of every client that is said to be in it. A universal
hash under one-time pads (Carter and Wegman 1981), linear in its message as in Agrawal and Boneh
(2009).

Whoever knows neither weights nor pads cannot make other slots pass, even if every slot and tag
were in clear: the pads make the tags uniform whatever the weights are, so other slots ask for a
value of sum_i weight_ji * difference_i that has one chance in PLAIN_MODULUS for each j, 2**-146
in all. So a sum with a client left out, counted twice, of an earlier round, in another place of
the vector, or made up altogether is refused.
"""

from typing import Final

import numpy as np

from secure_fd.aggregation.bfv.scheme import DEGREE, PLAIN_MODULUS
from secure_fd.crypto.primitives import WORD, Keystream
from secure_fd.errors import PeerError
from secure_fd.knowledge import WordArray

TAGS: Final = 3
DATA_SLOTS: Final = DEGREE - TAGS

_MODULUS: Final = np.uint64(PLAIN_MODULUS)
_MASK: Final = np.uint64(2 ** PLAIN_MODULUS.bit_length() - 1)
_LIMB_BITS: Final = 13
"""A limb times a slot, and DATA_SLOTS residues, stay below 2**64."""
_SHIFTS: Final = (39, 26, 13, 0)


def residues(stream: Keystream, count: int) -> WordArray:
    """`count` uniform residues: keystream words cut to 49 bits, those not below the prime skipped.

    A word is skipped once in 2**31.
    """
    found = np.empty(0, dtype=np.uint64)
    while found.size < count:
        wanted = count - found.size
        words = np.frombuffer(stream.read(wanted * WORD.itemsize), dtype=WORD) & _MASK
        found = np.concatenate([found, words[words < _MODULUS]])
    return found


def weights(key: bytes) -> WordArray:
    """The weights [TAGS, DATA_SLOTS] of a key that serves one round."""
    return residues(Keystream(key), TAGS * DATA_SLOTS).reshape(TAGS, DATA_SLOTS)


def pads(key: bytes, ciphertexts: int) -> WordArray:
    """The pads [ciphertexts, TAGS] of a key that serves one client and one round."""
    return residues(Keystream(key), TAGS * ciphertexts).reshape(ciphertexts, TAGS)


def weigh(weight: WordArray, data: WordArray) -> WordArray:
    """[TAGS, DATA_SLOTS] weights on [c, DATA_SLOTS] residues -> [c, TAGS] residues."""
    columns = [_dot(row, data) for row in weight]
    return np.stack(columns, axis=1)


def attach(data: WordArray, weight: WordArray, pad: WordArray) -> WordArray:
    """Data [c, DATA_SLOTS] -> slots [c, DEGREE], tags last."""
    return np.hstack([data, (weigh(weight, data) + pad) % _MODULUS])


def detach(slots: WordArray, weight: WordArray, pad: WordArray) -> WordArray:
    """Summed slots [c, DEGREE] -> their data [c, DATA_SLOTS].

    pad: [c, TAGS], the pads of all clients in the sum, added up. PeerError unless every tag fits.
    """
    data, found = slots[:, :DATA_SLOTS], slots[:, DATA_SLOTS:]
    if not np.array_equal(found, (weigh(weight, data) + pad) % _MODULUS):
        raise PeerError("what was decrypted is not the sum of the listed clients' inputs")
    return data


def _dot(weight: WordArray, data: WordArray) -> WordArray:
    """sum_i weight_i * data_i for every row, by Horner's rule over limbs of the weights."""
    total = np.zeros(len(data), dtype=np.uint64)
    for shift in _SHIFTS:
        limb = weight >> np.uint64(shift) & np.uint64(2**_LIMB_BITS - 1)
        part = (data * limb % _MODULUS).sum(axis=1, dtype=np.uint64)
        total = ((total << np.uint64(_LIMB_BITS)) + part) % _MODULUS
    return total
