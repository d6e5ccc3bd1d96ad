"""A Hypothesis strategy: messages that are no longer what was sent."""

from hypothesis import strategies as st

from tests.vectors.independent import HEADER


@st.composite
def altered(draw: st.DrawFn, message: bytes, *, all_bits: bool) -> bytes:
    """Cut, lengthened, or with one bit of its header (of all of it) the other way."""
    cut = st.integers(1, 60).map(lambda size: message[:-size])
    longer = st.integers(1, 60).map(lambda size: message + bytes(size))
    last = (len(message) if all_bits else HEADER) * 8 - 1

    def flip(bit: int) -> bytes:
        changed = bytearray(message)
        changed[bit // 8] ^= 1 << bit % 8
        return bytes(changed)

    return draw(cut | longer | st.integers(0, last).map(flip))
