"""The server's process over any courier: its files, its rounds, and a line in a journal for each.

The journal is for operators: it has hashes of sums, and no sum, key or message.
"""

import json
import os
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from secure_fd.deployment import keys
from secure_fd.deployment.health import STATUS, Doing, Health
from secure_fd.deployment.loop import Courier, Rounds
from secure_fd.deployment.parties import Agreement
from secure_fd.deployment.records import proxies_in
from secure_fd.deployment.roster import read
from secure_fd.deployment.serve import JOURNAL, check_home
from secure_fd.errors import SecureFDError
from secure_fd.secagg.server import Server as SumServerMember
from secure_fd.storage import Store


def serve_rounds(home: Path, roster: Path, proxies: Path, courier: Courier) -> None:
    """Run what is left of a roster's rounds.

    Raises ConfigurationError where the roster is not of this server, before it writes anything,
    and where the proxies are others.
    """
    agreed = read(roster)
    check_home(home, agreed)
    note(home, {"event": "begun", "pid": os.getpid()})
    health: Health | None = None
    try:
        pixels = proxies_in(proxies, agreed.shape[-1], agreed.shape[0])
        agreement = Agreement.of(agreed, agreed.check_proxies(pixels))
        with closing(keys.open_state(home)) as file:
            rounds = rounds_of(agreement, courier, file)
            health = rounds.health
            health.path = home / STATUS
            for outcome in rounds.run(agreement.rounds):
                note(home, {"event": "round"} | asdict(outcome))
    except BaseException as error:
        why = str(error) if isinstance(error, SecureFDError) else type(error).__name__
        line: dict[str, Any] = {"event": "failed", "reason": why}
        if health is not None:
            health.now(Doing.STOPPED, ())
            line |= health.summary()
        note(home, line)
        raise
    note(home, {"event": "ended", **health.summary()})


def rounds_of(agreement: Agreement, courier: Courier, file: Store) -> Rounds:
    """The server's rounds over the files that its last process left."""
    member = SumServerMember(
        agreement.roster.session,
        keys.agreement_in(file),
        keep=lambda memory: file.put({"memory": memory}),
        memory=file.get("memory"),
    )
    return Rounds(agreement, courier, keys.identity_in(file), member, file)


def note(home: Path, line: dict[str, Any]) -> None:
    """Add a line to the journal."""
    with (home / JOURNAL).open("a") as out:
        out.write(json.dumps(line) + "\n")
