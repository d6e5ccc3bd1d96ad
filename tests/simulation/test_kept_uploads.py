"""A server that keeps what it reads of shared parameters: all rounds, and their memory."""

import numpy as np
import pytest

from attacks.core.run import public_of
from attacks.core.view import server_view
from secure_fd.errors import MissingCapabilityError
from secure_fd.methods.fedavg import FedAvg
from secure_fd.protocol.transcript import ObservedRound, Transcript
from secure_fd.secure_sum.masked import MaskedSum
from secure_fd.wire import Stage
from tests.attack_games import client_view
from tests.small_federation import faults, federation

ROUNDS, PARAMETERS = 3, 7850
AWAY = faults({1: {0: Stage.PREPARE}})


def shared(data, *, keep=True, masks=False, dropouts=None, record=True):
    """Three rounds of FedAvg."""
    sums = MaskedSum(4, public_seed=0) if masks else None
    made = federation(data, FedAvg(), aggregation=sums, dropouts=dropouts)
    made.transcript.keep_uploads, made.transcript.keep_inputs = keep, record
    made.fit(ROUNDS)
    return made.transcript


def kept_bytes(made):
    """Memory of all parameters that clients were read to send."""
    read = [seen.uploads for seen in made.parameters if seen.uploads is not None]
    return sum(own.nbytes for uploads in read for own in uploads.values())


def test_uploads_of_every_round_are_kept_where_asked_for_and_else_of_the_newest(digits):
    kept, plain = shared(digits), shared(digits, keep=False)
    records = [len(client.train) for client in digits.clients]
    for seen, same in zip(kept.parameters, plain.parameters, strict=True):
        own = np.stack([seen.uploads[k] for k in range(len(records))])
        # What was kept is of this round: its mean by records is the round's model.
        assert np.average(own, axis=0, weights=records) == pytest.approx(seen.result, abs=1e-5)
        assert np.array_equal(seen.result, same.result)  # keeping changes nothing of the run
    assert kept_bytes(kept) == ROUNDS * kept_bytes(plain) == ROUNDS * 4 * PARAMETERS * len(records)
    assert len(server_view(kept, public_of(digits)).uploads_by_round(0)) == ROUNDS
    masked = server_view(shared(digits, masks=True), public_of(digits))
    for view in (client_view(kept, public_of(digits)), masked):
        with pytest.raises(MissingCapabilityError):
            view.uploads_by_round(0)


def test_a_run_that_records_no_inputs_keeps_the_sums_alone(digits):
    made, whole = shared(digits, record=False), shared(digits)
    assert not any(seen.payloads for seen in made.parameters)
    assert kept_bytes(made) == 0
    assert whole.parameters[-1].payloads
    assert np.array_equal(made.parameters[-1].result, whole.parameters[-1].result)


def test_the_mean_stands_in_for_a_client_that_was_away(digits):
    kept = shared(digits, dropouts=AWAY)
    uploads = server_view(kept, public_of(digits)).uploads_by_round(0)
    assert np.array_equal(uploads[1], kept.parameters[1].result)
    assert not np.array_equal(uploads[2], kept.parameters[2].result)


def test_of_the_rounds_that_are_named_uploads_are_kept_and_of_the_newest():
    made, model = Transcript(2, keep_uploads={1}), np.ones(3, dtype=np.float32)
    for index in range(4):
        made.add_parameters(ObservedRound(index, model, {0: model}))
    assert [seen.uploads is not None for seen in made.parameters] == [False, True, False, True]
