"""The ledger of a site's records: it belongs to them, and counts over all federations."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from secure_fd.data.columns import Table
from secure_fd.data.federated import ClientData
from secure_fd.deployment.parties import is_table_file
from secure_fd.deployment.roster import RosterFile
from secure_fd.errors import BudgetError, ConfigurationError
from secure_fd.privacy.guarantee import format_epsilon
from secure_fd.privacy.ledger import Booking, BudgetLedger
from secure_fd.privacy.record import PooledRecordUnit
from secure_fd.simulation.build import default_delta
from secure_fd.storage import Store

log = logging.getLogger(__name__)
_NEARLY = 0.8
"""Share of the total from which on a site is warned."""


def default_ledger(data: Path) -> Path:
    """Return the file of the ledger, beside the folder of the records, or the rows of a table."""
    place = Table.read(data).path if is_table_file(data) else data.resolve()
    return place.with_name(f"{place.name}.ledger")


def bytes_of(records: ClientData) -> Iterator[bytes]:
    """Yield the pixels of every record, or the values of a row.

    Rows of two people may be equal. This recognises records and counts nothing: what is spent is
    booked for all of them together. Rows that other columns describe are not recognised.
    """
    for part in (records.train, records.validation):
        for pixels in part.pixels:
            yield pixels.numpy().tobytes()


@dataclass(frozen=True, slots=True)
class Budget:
    """path: of the ledger. epsilon: total of a new one; None takes the roster's."""

    path: Path
    epsilon: float | None = None

    def ledger(
        self, agreed: RosterFile, number: int, records: ClientData, file: Store
    ) -> BudgetLedger | None:
        """Open the ledger of the records, or make it; None if the roster has no epsilon.

        A ledger that this home made and that is gone is not made again, since what was released
        under it is not known. Raises ConfigurationError then, for one of other records, and for
        another total than the ledger's.
        """
        terms, name, path = agreed.terms, agreed.sites[number].name, self.path.resolve()
        if terms.unit == "none":
            return None
        if not path.exists():
            if file.get("ledger") is not None:
                raise ConfigurationError("ledger", str(path), "it is gone: enrol anew")
            total = terms.epsilon if self.epsilon is None else self.epsilon
            delta = default_delta(agreed.records)
            BudgetLedger.create(path, name, epsilon=total, delta=delta).close()
        found = BudgetLedger.open(path, epsilon=self.epsilon)
        if not found.recognise(bytes_of(records)) and found.bookings:
            found.close()
            allowed = "it is of other records: name the ledger of these, or a new file"
            raise ConfigurationError("ledger", str(path), allowed)
        file.put({"ledger": b"made"})
        return found


def check_left(ledger: BudgetLedger, unit: object, *, begun: bool) -> None:
    """Say what is spent, and refuse a run that would go beyond the total; before it starts.

    begun: whether it has started, so that its releases are booked in part. Raises BudgetError.
    """
    total, spent = ledger.total.epsilon, ledger.spent
    if begun or not isinstance(unit, PooledRecordUnit):
        return
    after = ledger.price(Booking("this federation", unit.plan.event()))
    shown = f"epsilon {format_epsilon(spent)} of {format_epsilon(total)} is spent on these records"
    if after > total:
        raise BudgetError(
            f"{shown}, and this federation would take them to {format_epsilon(after)}: "
            "agree on a smaller epsilon"
        )
    log.info(f"{shown}; this federation takes them to {format_epsilon(after)}")
    if spent > 0 and after >= _NEARLY * total:
        log.warning(f"after this federation {after / total:.0%} of these records' epsilon is spent")
