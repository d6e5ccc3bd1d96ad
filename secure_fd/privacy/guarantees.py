"""What has been released so far, event by event, beside what was planned."""

import math
from collections.abc import Sequence
from functools import cache
from typing import NoReturn

from secure_fd.errors import ConfigurationError, LocalError
from secure_fd.privacy.accountants import accountant_for
from secure_fd.privacy.events import Event, Repeated
from secure_fd.privacy.groups import Groups, group_epsilons
from secure_fd.privacy.plans import ClientPlan, PooledPlan, TrainingPlan
from secure_fd.privacy.response import RandomizedResponse
from secure_fd.privacy.samplers import FLOAT_CUT, TOTAL_VARIATION
from secure_fd.privacy.units import (
    GROUP_SIZES,
    Composed,
    Guarantee,
    Part,
    PrivacyUnit,
    figure,
)


class Odometer:
    """One unit's releases, in the order in which they were first made.

    A noisy release hands over its event; one that no event stands for hands over the reason why no
    epsilon can be named any more. Nothing is ever taken back, so there is no copy.

    What it reads is for information: an epsilon that holds whenever somebody chooses to stop is
    that of the plan (a filter), not of what was spent until then (Rogers, Roth, Ullman and Vadhan,
    "Privacy Odometers and Filters", NeurIPS 2016).

    >>> from secure_fd.privacy.events import Response
    >>> spent = Odometer()
    >>> spent.spend("answers", Response(2.0, 11))
    >>> spent.parts(1e-5)
    (Part(name='answers', times=1, epsilon=2.0),)
    """

    __slots__ = ("_spent", "_unaccounted")

    def __init__(self) -> None:
        self._spent: dict[tuple[str, Event], int] = {}
        self._unaccounted: dict[str, None] = {}

    def spend(self, part: str, event: Event) -> None:
        """Count a release under the name of its part."""
        self._spent[part, event] = self._spent.get((part, event), 0) + 1

    def void(self, *reasons: str) -> None:
        """Record a reason why the guarantee is void, once each."""
        self._unaccounted |= dict.fromkeys(reasons)

    @property
    def unaccounted(self) -> tuple[str, ...]:
        """Why there is no epsilon; empty where there is one."""
        return tuple(self._unaccounted)

    def parts(self, delta: float) -> tuple[Part, ...]:
        """How often each part was released, and what that would cost were it all there is.

        Raises UnsupportedEventError for an event that no accountant knows.
        """
        repeated = {part: Repeated(event, times) for (part, event), times in self._spent.items()}
        return tuple(
            Part(name, event.times, _cost(event, delta)) for name, event in repeated.items()
        )

    def __repr__(self) -> str:
        return f"Odometer({sum(self._spent.values())} releases)"

    def __reduce__(self) -> NoReturn:
        raise LocalError("an odometer is single: it cannot be pickled or copied")


# The claims, one function a mechanism: what each epsilon covers, and what it does not.


_NEVER_COVERED = (
    "who takes part and when",
    "timing",
    "hyper-parameters tuned on private data",
    "figures that an evaluation reads off raw votes or networks",
    "other runs and other rows over the same data, whose epsilons add up",
)
SHUFFLED = ("batches were shuffled, where the accountant assumes Poisson samples",)

_NORMALS = 2.0**40
"""Pairs of normal values in a run of DP-SGD, at most."""
_TAIL = "delta is too small for noise whose tail ends"
_COARSE = "the noise is too small for a sampler that is within 2^-110 of exact"
_QUERIED = "the client's network, if others may query it: it learns from raw records"
_WARMED_UP = "a network that others may query and that learnt from raw records besides"


def label_guarantee(mechanism: RandomizedResponse, *, releases: int, delta: float) -> Guarantee:
    """Claim of randomised response, each answer released once: deniability of a single answer.

    releases: answers of the busiest client. delta: of the composition only; the label unit has
    none.
    """
    total = _cost(Repeated(mechanism.event(), releases), delta)
    levels = (PrivacyUnit.RECORD, PrivacyUnit.CLIENT)
    return Guarantee(
        unit=PrivacyUnit.LABEL,
        neighbours="one released symbol of one (client, proxy) pair, abstain included",
        epsilon=mechanism.epsilon,
        delta=0.0,
        covers=("the class that a client answered for one proxy", "whether it abstained there"),
        not_covered=(
            "a record or a client, whose effect on all answers adds up as stated",
            _QUERIED,
            *_NEVER_COVERED,
        ),
        composes_to=tuple(Composed(level, total, delta) for level in levels),
        sampler="randomised response by 64-bit integer thresholds, exact for this epsilon",
        accountant=f"pure for one answer, exact Renyi over {releases:,} answers",
        parts=(Part("answers, each about another proxy", releases, mechanism.epsilon),),
        assumptions=(
            "each (client, proxy) pair is released once and remembered",
            "for the larger units, that nothing but these answers leaves the client and that their "
            "number does not follow from what they said",
        ),
        caveats=("this is deniability of a single answer and nothing more",),
        groups=tuple((size, total) for size in GROUP_SIZES),  # any record may change all answers
    )


def _groups(plan: PooledPlan, delta: float, draws: int) -> Groups:
    """k records that are summed move a release k times as far: its own curve says the price."""
    return tuple((k, sampled_cost(plan.moved_by(float(k)), delta, draws)[0]) for k in GROUP_SIZES)


def dp_sgd_guarantee(
    plan: TrainingPlan, *, epsilon: float, delta: float, poisson: bool
) -> Guarantee:
    """A network trained by DP-SGD under a plan that was calibrated to `epsilon`.

    poisson: whether batches were drawn by Poisson sampling, as the accountant assumes; shuffled
    batches void the claim.
    """
    check_delta_of(delta, plan.n_records, "records")
    cut = _NORMALS * FLOAT_CUT * (1 + math.exp(min(epsilon, 200.0)))
    groups = group_epsilons(plan, delta)
    made = Guarantee(
        unit=PrivacyUnit.RECORD,
        neighbours=plan.neighbours,
        epsilon=epsilon,
        delta=delta + cut,
        covers=("everything computed from the trained network alone",),
        not_covered=(
            "the number of records",
            "a client selector or threshold fitted on the same records",
            "which classes a client holds",
            *_NEVER_COVERED,
        ),
        composes_to=(Composed(PrivacyUnit.CLIENT, math.inf, delta),),
        sampler=(
            f"floating-point Gaussian, noise multiplier {plan.noise:.4g}, "
            "and Poisson batches, from AES-256-CTR under a key of the operating system"
        ),
        accountant=f"{accountant_for(plan.event()).name}, {plan.steps:,} steps "
        f"at sampling rate {plan.sample_rate:.4g}",
        parts=(Part("all gradient steps", 1, epsilon),),
        assumptions=(
            "batches are Poisson samples that nobody else can predict",
            "every gradient is clipped by record, one that is not finite to nothing",
            "a record's gradient depends on that record and the weights alone",
        ),
        caveats=("floating-point noise voids the claim against an attacker who reads low bits",),
        swapped=dict(groups)[2],
        groups=groups,
    )
    ended = (_TAIL,) if cut > delta / 100 else ()
    return made.voided_by((*(() if poisson else SHUFFLED), *ended))


def client_guarantee(plan: ClientPlan, delta: float, spent: Odometer) -> Guarantee:
    """Noise shares inside masked sums, for all planned rounds. spent: those released so far.

    A record can move every vote of its client: at the record level the neighbours are those of a
    client that votes otherwise.
    """
    check_delta_of(delta, plan.clients, "clients")
    draws = plan.clients * plan.proxies * plan.classes * plan.rounds
    epsilon, total = sampled_cost(plan.event(), delta, draws)
    record = Composed(PrivacyUnit.RECORD, *sampled_cost(plan.replaced(), delta, draws))
    made = Guarantee(
        unit=PrivacyUnit.CLIENT,
        neighbours=plan.neighbours,
        epsilon=epsilon,
        delta=total,
        covers=("everything that the sums, and whatever is computed from them, tell of a client",),
        not_covered=(_QUERIED, *_NEVER_COVERED),
        composes_to=(record,),
        sampler=f"{plan.mechanism}, {plan.clients:,} shares of variance {plan.share_variance:.4g} "
        f"on votes of {plan.scale:,} units",
        accountant=f"{accountant_for(plan.event()).name}, {plan.rounds:,} planned rounds",
        parts=spent.parts(delta),
        assumptions=(
            "the server sees nothing but the masked sums",
            f"a sum holds {plan.survivors:,} of {plan.clients:,} clients or more, "
            f"and at most {plan.corrupt:,} of these tell the server their noise",
        ),
        caveats=(
            f"for a client that votes otherwise instead of abstaining it is epsilon "
            f"{figure(record.epsilon)}",
        ),
        swapped=record.epsilon,
        groups=tuple((size, record.epsilon) for size in GROUP_SIZES),
    )
    coarse = (_COARSE,) if plan.noise > 0 and math.isinf(epsilon) else ()
    return made.voided_by((*spent.unaccounted, *coarse))


def pooled_guarantee(
    plan: PooledPlan, delta: float, records: Sequence[int], spent: Odometer
) -> Guarantee:
    """Noise on sums over the records of clients, of which there are so many: shared, or each's own.

    All rounds and networks that follow are post-processing of the sums.
    """
    check_delta_of(delta, max(records), "records of a client")
    local = plan.honest == 1
    draws = (1 if local else plan.clients) * plan.entries * plan.sums
    epsilon, total = sampled_cost(plan.event(), delta, draws)
    swapped, _ = sampled_cost(plan.replaced(), delta, draws)
    client = Composed(
        PrivacyUnit.CLIENT, *sampled_cost(plan.moved_by(float(max(records))), delta, draws)
    )
    sums = "releases" if local else "sums"
    made = Guarantee(
        unit=PrivacyUnit.RECORD,
        neighbours=plan.neighbours,
        epsilon=epsilon,
        delta=total,
        covers=(f"everything that the {sums}, and whatever follows from them, tell of a record",),
        not_covered=("the numbers of records", _WARMED_UP, *_NEVER_COVERED),
        composes_to=(client,),
        sampler=f"{plan.mechanism}, within 2^-110 of exact, {plan.clients} shares, each of "
        f"1 / sqrt({plan.honest}) of a noise multiplier of {plan.noise:.4g}"
        if not local
        else "discrete Gaussian on integers, within 2^-110 of exact, "
        f"noise multiplier {plan.noise:.4g} at every client",
        accountant=f"{accountant_for(plan.event()).name}, {plan.sums} planned {sums}",
        parts=spent.parts(delta),
        assumptions=(
            "the features were fitted on public data",
            "nothing computed from a network trained on the raw records leaves the client",
            *(() if local else _shares_assumed(plan)),
        ),
        caveats=(
            f"for replace-one neighbours the same noise is epsilon {figure(swapped)}",
            *(() if local else (_fewer(plan, delta, draws),)),
        ),
        swapped=swapped,
        groups=_groups(plan, delta, draws),
    )
    coarse = (_COARSE,) if plan.noise > 0 and math.isinf(epsilon) else ()
    return made.voided_by((*spent.unaccounted, *coarse))


def _shares_assumed(plan: PooledPlan) -> tuple[str, ...]:
    return (
        "the server sees nothing but the masked sums",
        f"a sum holds {plan.survivors:,} of {plan.clients:,} clients or more, "
        f"and at most {plan.corrupt:,} of these tell the server their noise",
    )


def _fewer(plan: PooledPlan, delta: float, draws: int) -> str:
    """The price if the server learns the noise of two more clients."""
    fewer = max(1, plan.honest - 2)
    weaker, _ = sampled_cost(plan.with_honest(fewer).event(), delta, draws)
    return f"where only {fewer} keep their noise to themselves it is epsilon {figure(weaker)}"


def check_delta_of(delta: float, count: int, what: str) -> None:
    """Refuse a delta that would allow to publish one of so many outright."""
    if delta * count >= 1:
        raise ConfigurationError(
            "delta", delta, f"use less than 1 / {count}, one over the number of {what}"
        )


def sampled_cost(event: Event, delta: float, draws: int) -> tuple[float, float]:
    """Epsilon and delta under noise of so many draws, each within 2^-110 of the ideal one.

    The outcomes of both worlds are that close to those of ideal noise, so (1 + e^epsilon) times
    the distance adds to delta. Where that is more than a hundredth of it nothing is claimed: a
    sampler's noise ends somewhere, and worlds further apart have no outcome in common.
    """
    epsilon = _cost(event, delta)
    slack = draws * TOTAL_VARIATION * (1 + math.exp(min(epsilon, 200.0)))
    return (epsilon, delta + slack) if slack <= delta / 100 else (math.inf, delta)


@cache
def _cost(event: Event, delta: float) -> float:
    return accountant_for(event).epsilon(event, delta)
