"""Values of one type as bytes (MessagePack), checked against the type when they are read."""

from operator import index
from typing import Any, Generic, TypeVar

import msgspec

from secure_fd.errors import SecureFDError

Value = TypeVar("Value")


class SecretText:
    """Base of structs with secrets: neither their text nor Rich's, as in tracebacks, shows any.

    >>> SecretText()
    <SecretText: secret>
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: secret>"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("secret", ...)]


class Codec(Generic[Value]):
    """Strict codec: `encode` writes what `decode` returned as the same bytes.

    kind: a type with `msgspec`'s constraints. name: of such a value, in sentences. error: raised
    for bytes that are no such value.

    >>> from secure_fd.errors import LocalError
    >>> pairs = Codec[tuple[int, float]](tuple[int, float], "a pair", LocalError)
    >>> pairs.decode(pairs.encode((1, 2)))
    (1, 2.0)
    """

    def __init__(self, kind: Any, name: str, error: type[SecureFDError]) -> None:  # noqa: ANN401 - a type or a union
        self._name, self._error = name, error
        self._decoder = msgspec.msgpack.Decoder(kind)

    def encode(self, value: Value) -> bytes:
        """As bytes; numbers of another kind become those of the type."""
        return msgspec.msgpack.encode(self._read(msgspec.msgpack.encode(value, enc_hook=_plain)))

    def decode(self, data: bytes) -> Value:
        """Return the value that `encode` wrote; raise the codec's error for any other bytes."""
        value = self._read(data)
        if msgspec.msgpack.encode(value) != data:
            raise self._error(f"the bytes of {self._name} are not in the one form that it has")
        return value

    def _read(self, data: bytes) -> Value:
        try:
            value: Value = self._decoder.decode(data)
        except (msgspec.MsgspecError, RecursionError, UnicodeError) as failure:
            raise self._error(f"these bytes are not {self._name}, or they are damaged") from failure
        return value


def _plain(number: Any) -> float | int:  # noqa: ANN401 - numpy's
    """Return NumPy's numbers as Python's; TypeError for what is no number."""
    return float(number) if isinstance(number, float) else index(number)
