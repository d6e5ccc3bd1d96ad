"""A site's process: its keys, records and budget, and the connection to the server."""

import math
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from secure_fd.crypto.keys import quantum_safe_available
from secure_fd.deployment import keys
from secure_fd.deployment.parties import Agreement
from secure_fd.deployment.records import proxies_in, records_in
from secure_fd.deployment.roster import RosterFile, read
from secure_fd.deployment.site import Site
from secure_fd.errors import ConfigurationError, LocalError, MissingCapabilityError
from secure_fd.optional import extra
from secure_fd.privacy.ledger import BudgetLedger
from secure_fd.storage import Store


@dataclass(frozen=True, slots=True)
class Desk:
    """Where a site takes part from. patience: seconds without a server until it gives up."""

    home: Path
    data: Path
    roster: Path
    proxies: Path
    patience: float


def join(desk: Desk) -> Site:
    """Take part until the run is over; the site, whose network is in its home.

    Raises ConfigurationError where the roster, the records or the proxies are not what was agreed
    on; LocalError where the server cannot be reached, and where the run ends before this site has
    trained a network; MissingCapabilityError without the extra, or without the key encapsulation
    that the roster demands.
    """
    with extra("flower"):
        from secure_fd.deployment.node import attend

    agreed = read(desk.roster)
    if agreed.hybrid and not quantum_safe_available():
        raise MissingCapabilityError(
            "the roster asks for HPKE with ML-KEM-768, which this site's cryptography lacks: "
            "install version 48 or newer with a back end that has it"
        )
    with closing(keys.open_state(desk.home)) as file:
        site = site_of(desk, agreed, file)
        certificate = desk.home / "server.pem"
        certificate.write_text(agreed.certificate)
        attend(agreed.address, certificate, site.answer, lambda: site.done, desk.patience)
    if not site.has_network:
        raise LocalError(
            "the run is over and this site has no network: no round gave it a result to train on"
        )
    return site


def site_of(desk: Desk, agreed: RosterFile, file: Store) -> Site:
    """The participant, as its files have it."""
    identity = keys.identity_in(file)
    number = agreed.number_of(identity.public.raw)
    public = agreed.check_proxies(proxies_in(desk.proxies, agreed.shape[-1], agreed.shape[0]))
    records = records_in(desk.data, agreed, number)
    agreement = Agreement.of(agreed, public, ledger_of(desk.home, agreed, number, file))
    return Site(agreement, number, identity, records, file, desk.home)


def ledger_of(
    home: Path, agreed: RosterFile, number: int, file: Store
) -> tuple[int, BudgetLedger] | None:
    """A site's number and the budget of its records, where the roster spends any.

    A ledger that was made and is gone is not made again: nobody knows what was released under it.
    """
    terms, name = agreed.terms, agreed.sites[number].name
    if terms.unit == "none" or math.isinf(terms.epsilon):
        return None
    path = home / "ledger"
    if not path.exists():
        if file.get("ledger") is not None:
            raise ConfigurationError("ledger", str(path), "it is gone: enrol anew")
        file.put({"ledger": b"made"})
        BudgetLedger.create(path, name, epsilon=terms.epsilon, delta=terms.delta).close()
    return number, BudgetLedger.open(path, name, epsilon=terms.epsilon, delta=terms.delta)
