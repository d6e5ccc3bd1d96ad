"""User-supplied methods and attacks get a row each, from one file each."""

from dataclasses import replace

from attacks import load
from attacks.core.base import AttackResult
from experiments.compare.comparison import attacked, run_of
from experiments.core import runs
from experiments.core.run_config import row_config
from experiments.privacy_compare import Settings, plan, row_specs

METHOD = "examples.own_method:Majority"
ATTACK = "examples.own_attack:LargestClass"


def test_a_user_supplied_method_and_attack_have_a_row_in_clear_and_under_masks():
    options = {"methods": METHOD, "attacks": ATTACK, "secure_agg": True, "quick": True}
    settings = Settings(dataset="digits", clients=3, rounds=1, proxies_per_round=32, **options)
    made = plan(settings, None)
    own = [spec for spec in row_specs(made) if spec.own]
    assert [spec.key for spec in own] == ["majority", "majority-masks"]
    clear, masked = (runs.run(row_config(made.base, spec), attacked=True) for spec in own)
    assert clear.accuracies == masked.accuracies
    assert clear.federation.transcript.distillation[0].uploads is not None
    assert masked.federation.transcript.distillation[0].uploads is None
    assert load(ATTACK).name == "largest-class"
    found = attacked(replace(run_of(clear), made={ATTACK: None}))
    assert isinstance(found[ATTACK], AttackResult)
