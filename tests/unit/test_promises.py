"""One line a row: epsilon by what neighbours differ in, and warnings where nothing holds."""

from experiments.compare.promises import privacy, promised, voids
from experiments.report.tables import rendered
from secure_fd.privacy.guarantee import Guarantee
from secure_fd.privacy.label import RandomizedResponse
from secure_fd.privacy.record import PooledPlan


def pooled() -> Guarantee:
    plan = PooledPlan(clients=10, honest=7, entries=2000, noise=1.1)
    return plan.guarantee(1e-5, (300,) * 10, released=1)


def label() -> Guarantee:
    mechanism = RandomizedResponse(4.0, 11)
    return mechanism.guarantee(releases=1000, delta=1e-5)


def test_a_claim_becomes_a_line_that_says_the_same():
    claims = {"pooled": pooled(), "label": label()}
    plain = {name: claim.to_json() for name, claim in claims.items()}
    table = privacy([*plain.items(), ("FedAvg", None)], images_per_person=3)
    assert table is not None
    lines = rendered([table]).splitlines()
    (shared,) = (line.split()[1:] for line in lines if line.startswith(" 1. pooled"))
    (answers,) = (line.split()[1:] for line in lines if line.startswith(" 2. label"))
    assert shared[1:4] == ["record", "1e-5", "3.93"]
    assert shared[6] == "no"  # a client
    assert float(shared[3]) < float(shared[4]) < float(shared[5])
    assert answers[1] == "label"
    assert answers[3] == answers[5] == answers[6] == "3,552"
    assert not any(line.startswith(" FedAvg") for line in lines)
    assert promised(plain["label"]) == ", ε 4 per label (3,552 per record)"


def test_a_void_claim_shows_no_epsilon_and_says_why():
    void = pooled().invalidated_by(("the noise was seeded",)).to_json()
    table = privacy([("pooled", void)], images_per_person=3)
    assert table is not None
    assert "3.93" not in rendered([table])
    assert promised(void) == ""
    assert voids([("pooled", void)]) == ["pooled promises nothing: the noise was seeded."]
    assert privacy([("FedAvg", None)], 3) is None
