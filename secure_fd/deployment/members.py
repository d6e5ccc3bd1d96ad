"""Change of members: a state file goes on under a new roster that its server signed.

The session of the roster before ends: set-up, memory, broadcasts and sums of it are dropped. Keys,
fingerprint and network stay, and the ledger is another file. The state file stays bound to the new
roster, since a party that went back could be asked for the sums of the old session once more.
"""

import logging
from typing import Final

from secure_fd.deployment.roster import RosterFile
from secure_fd.errors import ConfigurationError
from secure_fd.storage import Store

log = logging.getLogger(__name__)
_KEPT: Final = frozenset({"identity", "agreement", "fingerprint", "ledger", "start"})
"""Values that are of no session. start: the global model with which a server begins its rounds."""
_DIGEST_BYTES: Final = 32


def binding(roster: RosterFile) -> dict[str, bytes]:
    """Return the value that binds a state file to a roster, once its session begins."""
    return {"roster": roster.digest + roster.identity}


def follows(file: Store, roster: RosterFile) -> bool:
    """Return whether a state file is of an earlier roster that this one takes the place of.

    The signature of a roster is checked when it is read. Raises ConfigurationError for a roster of
    another server, and for one that does not have the file's among those before it.
    """
    kept = file.get("roster")
    if kept is None or kept == binding(roster)["roster"]:
        return False
    digest, server = kept[:_DIGEST_BYTES], kept[_DIGEST_BYTES:]
    own = f"this home belongs to the roster whose digest begins {digest[:8].hex()}"
    if server != roster.identity:
        allowed = f"it is of another server, and {own}: use that, or another home"
        raise ConfigurationError("roster", roster.name, allowed)
    if digest not in roster.previous:
        allowed = f"it was not made to replace this home's: {own}; ask the coordinator"
        raise ConfigurationError("roster", roster.name, allowed)
    return True


def move(file: Store, roster: RosterFile) -> None:
    """Bind a state file to a roster that it `follows`, and drop the session before; else nothing.

    The newest global model of a server is that with which it begins.
    """
    if not follows(file, roster):
        return
    names = ", ".join(site.name for site in roster.sites)
    log.info(f"a new roster, of {names}: the session of the roster before ends")
    newest = file.get("network")
    values = binding(roster) | ({} if newest is None else {"start": newest})
    file.put(values, drop=set(file.names()) - _KEPT - values.keys())
