"""The survey of known proxies: bits of own records, one sum, and the gate of distillation."""

from dataclasses import replace

import numpy as np
import pytest

from secure_fd.data.federated import FederatedData, federate
from secure_fd.data.images import Images
from secure_fd.data.partition import parse_split
from secure_fd.data.sources import load
from secure_fd.errors import PeerError
from secure_fd.methods import survey
from secure_fd.methods.fedmd import FedMD
from secure_fd.methods.selective_fd import SelectiveFD
from secure_fd.methods.survey import Survey, known_proxies
from secure_fd.privacy.label import LabelUnit
from secure_fd.secure_sum.masked import MaskedSum
from secure_fd.selection.familiarity import KnownProxies
from secure_fd.simulation.federation import Federation
from secure_fd.wire import Stage
from tests.small_federation import BRIEF, Unsurveyed, alike, all_proxies, faults, federation, run

# The sum.


def test_sums_of_bits_give_the_share_of_holders_that_know_a_proxy(monkeypatch):
    form, found = Survey(n_proxies=3, n_classes=2), []
    monkeypatch.setattr(survey, "known_proxies", lambda rates, _: found.append(rates))
    one = KnownProxies(np.array([[1, 0], [0, 0], [1, 1]], bool), np.array([True, True]))
    other = KnownProxies(np.array([[1, 0], [0, 0], [0, 0]], bool), np.array([True, False]))
    form.known(form.encode(one) + form.encode(other) + form.encode(None), 3, (10, 10, 10))
    assert found[0].tolist() == [[1.0, 0.0], [0.0, 0.0], [0.5, 1.0]]


@pytest.mark.parametrize("broken", [(0, 3), (6, 4)])
def test_sums_that_clients_cannot_have_given_are_refused(broken):
    form = Survey(n_proxies=3, n_classes=2)
    total = form.encode(KnownProxies(np.ones((3, 2), bool), np.ones(2, bool)))
    total[broken[0]] = broken[1]
    with pytest.raises(PeerError):
        form.known(total, 2, (10, 10))


def test_the_gate_opens_beyond_its_error_alone():
    """A share of .93 is known: 3 errors of .02 leave .06, and of .03 leave .09."""
    rates = np.r_[np.ones(837), np.zeros(163)][:, None]
    assert known_proxies(rates, 0.03).all()
    assert known_proxies(rates, 0.02).sum() == 837
    assert Survey(3, 2).known(np.zeros(8, np.uint64), 2, (1, 1)).all()  # no holder


def answered(rates: np.ndarray) -> np.ndarray:
    """Known proxies where holder k knows proxy x in class c with probability rates[k, x, c]."""
    holders, *shape = rates.shape
    rng, form = np.random.default_rng(0), Survey(*shape)
    bits = rng.random(rates.shape) < rates
    total = sum(form.encode(KnownProxies(each, np.ones(shape[1], bool))) for each in bits)
    return form.known(np.asarray(total), holders, (100,) * holders)


PLACES = np.arange(400)


@pytest.mark.parametrize(("holders", "liar"), [(3, False), (10, False), (10, True)])
def test_foreign_proxies_are_found_where_sites_are_alike(holders, liar):
    """Half is foreign. Of ten holders one may claim to know 95 % of all proxies in one class."""
    rates = np.full((holders, 400, 4), 0.01 if liar else 0.03)
    rates[:, PLACES[:200], PLACES[:200] % 4] = 0.9
    if liar:
        rates[0, :, 2] = 0.95
    found = answered(rates)
    assert found[:200].mean() > 0.9
    assert found[200:].mean() < 0.1


@pytest.mark.parametrize(("known", "gated"), [(49, False), (50, True)])
def test_the_gate_is_left_out_with_a_warning_if_few_proxies_are_known(known, gated, caplog):
    form = Survey(400, 1)
    bits = (np.arange(400) < known)[:, None]
    found = form.known(form.encode(KnownProxies(bits, np.ones(1, bool))), 1, (100,))
    assert found.sum() == (known if gated else 400)
    warned = [r for r in caplog.records if r.name == "secure_fd" and r.levelname == "WARNING"]
    assert len(warned) == (not gated)


# The exchange.


def targets_of(made: Federation) -> np.ndarray:
    """[P] whether a proxy is a target of the first client."""
    return np.asarray(made.roles[0]._targets._known)


def surveyed(data: FederatedData, method: SelectiveFD) -> Federation:
    return run(federation(data, method, schedule=replace(all_proxies(data), proxy_steps=0)), 1)


def test_foreign_images_are_no_targets():
    """The mutant without a survey distils nearly all of them."""
    data = federate(load("mnist5k"), parse_split("strong"), 10, 0)
    own, pixels = np.arange(len(data.proxies)) % 2 == 0, data.proxies.pixels.clone()
    pixels[~own] = pixels[~own].roll((14, 14), (2, 3))  # quarters change places
    data = replace(data, proxies=Images(pixels, data.proxies.labels))
    gated, mutant = (surveyed(data, kind("soft")) for kind in (SelectiveFD, Unsurveyed))
    assert targets_of(gated)[~own].mean() <= 0.02
    assert targets_of(gated)[own].mean() > 0.85
    assert targets_of(mutant)[~own].mean() > 0.9
    assert gated.server_role.known.mean() == pytest.approx(0.45, abs=0.06)


def test_weighed_votes_alone_have_a_survey(digits):
    """Counted votes abstain already, other methods know no classes, noise would not cover it."""
    cases = {
        "weighed": federation(digits, SelectiveFD("soft")),
        "counted": federation(digits, SelectiveFD("soft", votes="counted")),
        "FedMD": federation(digits, FedMD("soft")),
        "noise": federation(digits, SelectiveFD("hard"), protection=LabelUnit(4.0, 1e-5)),
    }
    asked = {name for name, made in cases.items() if run(made, 1).transcript.survey is not None}
    assert asked == {"weighed"}


def test_a_client_answers_one_survey(digits):
    """A message that it missed may name a survey that it has answered."""
    made = run(federation(digits, SelectiveFD("soft")), 2)
    client, terms = made.roles[0], made.server_role.terms
    again = terms.announcement(2, terms.draws.of(2), survey=True)
    with pytest.raises(PeerError, match="survey"):
        next(client.round(again))
    client.missed(again, b"")


def test_a_survey_that_failed_is_asked_again(digits):
    """Too few are left of the first round, all are there in the second."""
    plan = faults({0: dict.fromkeys(range(3), Stage.PREPARE)})
    made = federation(digits, SelectiveFD("soft"), aggregation=MaskedSum(4), dropouts=plan)
    assert [report.aborted for report in made.rounds(2)] == [True, False]
    assert made.transcript.survey.index == 1


def test_a_client_that_left_in_the_survey_receives_nothing_of_the_vote():
    """It does not know of the second sum, whose messages it would have to refuse."""
    made = federation(
        alike(10, proxies=10, local=20),
        SelectiveFD("hard"),
        aggregation=MaskedSum(10, public_seed=0),
        schedule=replace(BRIEF, warmup_steps=1, local_steps=0, proxy_steps=0),
        dropouts=faults({0: {2: Stage.INPUT, 5: Stage.INPUT, 6: Stage.CONSISTENCY}}),
    )
    report = next(made.rounds(1))
    assert report.refused == ()
    assert set(dict(report.missing)) == {2, 5, 6}
    assert len(report.survivors) == 7
