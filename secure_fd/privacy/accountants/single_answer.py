"""Pure differential privacy of one answer: no delta, and nothing to convert."""

from dataclasses import dataclass
from typing import ClassVar, final

from secure_fd.errors import UnsupportedEventError
from secure_fd.privacy.events import Event, Response, primitives


@final
@dataclass(frozen=True, slots=True)
class SingleAnswer:
    """The epsilon that an answer is drawn with holds at any delta, 0 included."""

    name: ClassVar = "pure, exact"
    resolution: ClassVar = 1e-9

    def supports(self, event: Event) -> bool:
        """At most one answer, and nothing else."""
        parts = primitives(event)
        return parts.total() <= 1 and all(isinstance(part, Response) for part in parts)

    def epsilon(self, event: Event, delta: float) -> float:  # noqa: ARG002 - it holds at any
        """The answer's own; 0 where there is none."""
        if not self.supports(event):
            raise UnsupportedEventError("event", event, f"{self.name} accounting knows no bound")
        return sum(part.epsilon for part in primitives(event) if isinstance(part, Response))
