"""The attacks by name. Names cost no import; `load` imports the one attack that is asked for."""

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from secure_fd.errors import ConfigurationError

if TYPE_CHECKING:
    from attacks.core.base import Attack

ATTACKS: Mapping[str, str] = {
    "label-distribution": "attacks.server.label_distribution:LabelDistribution",
    "differencing": "attacks.server.differencing:Differencing",
    "participation": "attacks.server.label_distribution:Participation",
    "inversion": "attacks.inversion.gmi:ModelInversion",
    "ideal-k1": "attacks.inversion.ideal:IdealK1",
    "ideal-k2": "attacks.inversion.ideal:IdealK2",
    "ideal-k3": "attacks.inversion.ideal:IdealK3",
    "update-inversion": "attacks.inversion.updates_attack:UpdateInversion",
    "update-inversion-8": "attacks.inversion.updates_attack:UpdateInversionOfEight",
    "update-inversion-cnn": "attacks.inversion.updates_attack:UpdateMatching",
    "gradient-analytic": "attacks.inversion.updates_attack:AnalyticInversion",
    "gradient-mean": "attacks.inversion.updates_attack:MeanInversion",
    "gradient-optimised": "attacks.inversion.updates_attack:OptimisedInversion",
    "update-of-run": "attacks.inversion.update_of_run:UpdateOfRun",
    "imprint": "attacks.inversion.imprint:Imprint",
    "selector-membership": "attacks.server.selector:FlipRadius",
    "lira": "attacks.membership.shadows:LiRA",
    "loss-threshold": "attacks.membership.shadows:LossThreshold",
    "rmia": "attacks.membership.shadows:RMIA",
    "lira-upload": "attacks.membership.shadows:UploadLiRA",
    "indirect": "attacks.membership.shadows:IndirectMembership",
    "server-members": "attacks.membership.server_members:ServerMembers",
    "label-only": "attacks.membership.label_only:FinalLabels",
    "label-only-gap": "attacks.membership.label_only:LabelOnlyGap",
    "label-only-shadows": "attacks.membership.label_shadows:ShadowedLabels",
    "tracing": "attacks.server.tracing:Tracing",
    "generator-membership": "attacks.server.generator:GeneratorMembership",
}
"""Name -> module:Class. The comparison runs those of `COMPARED`, the suite all but the generator's,
which has a study of its own; those of class sums in scenes that are named."""

OF_UPDATES = ("update-inversion", "update-inversion-8", "update-inversion-cnn")
"""Attacks on one update, each with a set-up of its own (`attacks.inversion.one_update`)."""

COMPARED = (
    "label-distribution",
    "server-members",
    "label-only",
    "inversion",
    "update-of-run",
    *OF_UPDATES,
)
"""Attacks that the comparison runs on each of its rows, in the order of its columns."""

PLAYED = ("game-server", "game-lira", "game-labels")
"""Attacks of the comparison on small federations, drawn from the same data and trained by a row's
protocol: members by what the server reads, and by an outsider who asks the final networks (`lira`,
`label-only-shadows`)."""

ON_REQUEST = ("tracing",)
"""Attacks on a run that the comparison runs where they are named."""

ON_A_RUN = (*COMPARED, "generator-membership", *ON_REQUEST)
"""Attacks that `Simulation.attack` accepts by name; the suite runs the others."""

_PARTS = ("prepare", "run", "score", "name", "title", "needs")


def load(name: str, field: str = "attack") -> "type[Attack[Any, Any]]":
    """The class of an attack by its name here, or of one's own as package.module:Name.

    Raises ConfigurationError, about `field`, for an unknown name, a module that cannot be imported,
    or a class that lacks a part of the interface.

    >>> load("lira").title
    'Membership: LiRA, online'
    """
    place = ATTACKS.get(name, name)
    module, colon, cls = place.partition(":")
    if not colon:
        known = f"use one of {', '.join(ATTACKS)}, or package.module:Name for one of your own"
        raise ConfigurationError(field, name, known)
    try:
        found = getattr(import_module(module), cls)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(field, name, f"use a class that exists ({error})") from error
    lacking = [part for part in _PARTS if not hasattr(found, part)]
    if lacking:
        raise ConfigurationError(field, name, f"give the class {', '.join(lacking)}")
    return cast("type[Attack[Any, Any]]", found)


def markdown_table() -> str:
    """The table of docs/attacks/all.md: every attack, what it needs, figure and control."""
    lines = ["| name | attack | needs | figure | control |", "|---|---|---|---|---|"]
    for name in ATTACKS:
        kind = load(name)
        needs = "; or ".join(
            ", ".join(sorted(capability.value for capability in each)) for each in kind.needs
        )
        lines.append(
            f"| `{name}` | {kind.title} | {needs} | {kind.figure_name} | {kind.control_name} |"
        )
    return "\n".join(lines)
