"""Objects that hold secrets: nothing of them in repr, and no pickle or copy."""

from typing import NoReturn, SupportsIndex

from secure_fd.errors import LocalError


class SecretHolder:
    """Base of every object that holds a key or a private input.

    Subclasses declare __slots__, so that no __dict__ exists that a printer could walk.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: secret>"

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Refuse pickle and copy alike: a copied round could be run twice on one key."""
        raise LocalError(f"{type(self).__name__} holds secrets and cannot be pickled or copied")
