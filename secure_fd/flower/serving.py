"""The server's process over any courier: its files, its rounds, and a line in a journal for each.

The journal is for operators: it has hashes of sums, and no sum, key or message.
"""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from secure_fd.errors import SecureFDError
from secure_fd.flower import keys
from secure_fd.flower.health import STATUS, Doing, Health
from secure_fd.flower.loop import Courier, RoundOutcome, Rounds
from secure_fd.flower.parties import Agreement
from secure_fd.flower.records import proxies_in
from secure_fd.flower.roster import Roster, read
from secure_fd.flower.serve import JOURNAL, check_home
from secure_fd.secagg.server import Server as SumServerMember
from secure_fd.state import StateFile


def serve_rounds(home: Path, roster: Path, proxies: Path, courier: Courier) -> None:
    """Run what is left of a roster's rounds.

    Raises ConfigurationError where the roster is not of this server, before it writes anything,
    and where the proxies are others.
    """
    agreed = read(roster)
    check_home(home, agreed)

    def load() -> Agreement:
        pixels = proxies_in(proxies, agreed.shape[-1], agreed.shape[0])
        return Agreement.of(agreed, agreed.check_proxies(pixels))

    serve_agreed(home, load, courier)


def serve_agreed(home: Path, load: Callable[[], Agreement], courier: Courier) -> Rounds:
    """The same for an agreement, whose loading may fail as the rounds may; the rounds that ran."""
    note(home, {"event": "begun", "pid": os.getpid()})
    health: Health | None = None
    try:
        agreement = load()
        file = keys.open_state(home)
        try:
            rounds = rounds_of(agreement, courier, file)
            health = rounds.health
            health.path = home / STATUS
            for outcome in rounds.run(agreement.rounds):
                note(home, {"event": "round"} | described(outcome))
        finally:
            file.close()
    except BaseException as error:
        why = str(error) if isinstance(error, SecureFDError) else type(error).__name__
        if health is not None:
            health.now(Doing.STOPPED, ())
        note(home, {"event": "failed", "reason": why, **_summary(health)})
        raise
    note(home, {"event": "ended", **_summary(health)})
    return rounds


def _summary(health: Health | None) -> Mapping[str, Any]:
    return {} if health is None else health.summary()


def rounds_of(agreement: Agreement, courier: Courier, file: StateFile) -> Rounds:
    """The server's rounds over the files that its last process left."""
    roster: Roster = agreement.roster
    member = SumServerMember(
        roster.session,
        keys.agreement_in(file),
        keep=lambda memory: file.write({"memory": memory}),
        memory=file.read("memory"),
    )
    return Rounds(agreement, courier, keys.identity_in(file), member, file)


def note(home: Path, line: dict[str, Any]) -> None:
    """Add a line to the journal."""
    with (home / JOURNAL).open("a") as out:
        out.write(json.dumps(line) + "\n")


def described(outcome: RoundOutcome) -> dict[str, Any]:
    """A round as a line; seconds to the millisecond."""
    return asdict(outcome) | {"clock": outcome.clock.rounded()}
