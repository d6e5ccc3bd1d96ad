"""CPU time inside a secure sum."""

import time
from typing import Any, Self

from secure_fd.secure_sum.base import SumClient, SumServer


class TimedSum:
    """A secure sum, or a role of one, that measures the methods of all roles together.

    >>> from secure_fd import PlainSum
    >>> made = TimedSum(PlainSum(3))
    >>> made.server().busy, made.seconds < 1
    (False, True)
    """

    def __init__(self, inner: object, whole: Self | None = None) -> None:
        self._inner, self._whole = inner, whole or self
        self.seconds = 0.0
        """CPU seconds of calls that returned, in this process and all of its threads."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - as the inner one's
        found = getattr(self._inner, name)
        if not callable(found):
            return found

        def timed(*given: object) -> object:
            start = time.process_time()
            made = found(*given)
            self._whole.seconds += time.process_time() - start
            return TimedSum(made, self._whole) if isinstance(made, SumClient | SumServer) else made

        return timed
