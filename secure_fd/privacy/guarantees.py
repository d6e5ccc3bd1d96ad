"""The claims, one function a mechanism: what each epsilon covers, and what it does not."""

import math

from secure_fd.errors import ConfigurationError
from secure_fd.privacy.accounting import (
    REPLACE_ONE,
    gaussian_epsilon,
    response_epsilon,
)
from secure_fd.privacy.randomized_response import RandomizedResponse
from secure_fd.privacy.units import Composed, Guarantee, PrivacyUnit, figure

_NEVER_COVERED = (
    "who takes part and when",
    "timing",
    "hyper-parameters tuned on private data",
)
NETWORK_RELEASED = ("something computed from a network trained on the raw records was released",)
SHUFFLED = ("batches were shuffled, where the accountant assumes Poisson samples",)

_DECLARED = "which classes a client holds (it declares them)"


def label_guarantee(
    mechanism: RandomizedResponse, *, releases: int, delta: float, declared: bool
) -> Guarantee:
    """Randomised response on each answer, released once: deniability of a single answer.

    releases: answers of the busiest client. delta: of the composition only; the label unit has
    none. declared: whether clients answer over declared classes.
    """
    total = response_epsilon(mechanism.epsilon, mechanism.alphabet_size, releases, delta)
    levels = (PrivacyUnit.RECORD, PrivacyUnit.CLIENT)
    return Guarantee(
        unit=PrivacyUnit.LABEL,
        neighbours="one released symbol of one (client, proxy) pair, abstain included",
        epsilon=mechanism.epsilon,
        delta=0.0,
        covers=("the class that a client answered for one proxy", "whether it abstained there"),
        not_covered=(
            "a record or a client, whose effect on all answers adds up as stated",
            "the client's network, if others may query it: it learns from raw records",
            *((_DECLARED,) if declared else ()),
            *_NEVER_COVERED,
        ),
        composes_to=tuple(Composed(level, total, delta) for level in levels),
        sampler="randomised response by 64-bit integer thresholds, exact for this epsilon",
        accountant=f"pure for one answer, exact Renyi over {releases:,} answers",
        assumptions=(
            "each (client, proxy) pair is released once and remembered",
            "for the larger units, that nothing but these answers leaves the client",
            *(("no single record decides which classes are declared",) if declared else ()),
        ),
        caveats=("this is deniability of a single answer and nothing more",),
    )


def record_guarantee(
    *,
    noise_multiplier: float,
    delta: float,
    n_records: int,
    declared: bool,
) -> Guarantee:
    """One noisy release of class-conditional feature means; all rounds are post-processing.

    declared: whether only the declared classes' blocks were released. A caller that releases
    anything else of the records must void the claim: `.voided_by(NETWORK_RELEASED)`.
    """
    if delta * n_records >= 1:
        raise ConfigurationError(
            "delta", delta, f"use less than 1 / {n_records}, one over the number of records"
        )
    swapped = gaussian_epsilon(noise_multiplier, delta, REPLACE_ONE)
    return Guarantee(
        unit=PrivacyUnit.RECORD,
        neighbours="one record of one client, present or zeroed out, its number of records "
        "and its set of classes public and unchanged",
        epsilon=gaussian_epsilon(noise_multiplier, delta),
        delta=delta,
        covers=("every label and abstention of every round, all computed from one release",),
        not_covered=(
            "the number of records",
            *((_DECLARED,) if declared else ()),
            "accuracies that an evaluation reads off the client's network",
            *_NEVER_COVERED,
        ),
        composes_to=(
            Composed(
                PrivacyUnit.CLIENT, gaussian_epsilon(noise_multiplier, delta, n_records), delta
            ),
        ),
        sampler=f"discrete Gaussian on integers, within 2^-110 of exact, "
        f"noise multiplier {noise_multiplier:.4g}",
        accountant="zero-concentrated, converted by Canonne, Kamath and Steinke (2020)",
        assumptions=(
            "the features were fitted on public data",
            "nothing computed from a network trained on the raw records leaves the client",
            "the means are released once",
        ),
        caveats=(f"for replace-one neighbours the same noise is epsilon {figure(swapped)}",),
    )


def dp_sgd_guarantee(
    *,
    epsilon: float,
    delta: float,
    noise_multiplier: float,
    sample_rate: float,
    steps: int,
    poisson: bool,
) -> Guarantee:
    """A network trained by Opacus, whose figures are passed in.

    poisson: whether batches were drawn by Poisson sampling, as the accountant assumes; shuffled
    batches void the claim.
    """
    return Guarantee(
        unit=PrivacyUnit.RECORD,
        neighbours="one record of one client, present or zeroed out, its number of records public",
        epsilon=epsilon,
        delta=delta,
        covers=("everything computed from the trained network alone",),
        not_covered=(
            "the number of records",
            "a client selector or threshold fitted on the same records",
            "which classes a client holds",
            *_NEVER_COVERED,
        ),
        composes_to=(Composed(PrivacyUnit.CLIENT, math.inf, delta),),
        sampler=(
            f"floating-point Gaussian, noise multiplier {noise_multiplier:.4g}, "
            "and Poisson batches, from AES-256-CTR under a key of the operating system"
        ),
        accountant=f"Opacus PRV, {steps:,} steps at sampling rate {sample_rate:.4g}",
        assumptions=(
            "batches are Poisson samples that nobody else can predict",
            "every gradient is clipped by record",
        ),
        caveats=("floating-point noise voids the claim against an attacker who reads low bits",),
    ).voided_by(() if poisson else SHUFFLED)
