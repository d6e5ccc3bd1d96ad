"""Command-line experiments: parse, call, save; and image sets that they alone use."""

from dataclasses import replace

from secure_fd.data.image_sets import IMAGE_SETS, TABLE_4, Tuned

_HOME = "experiments.core.features"
# Features come from one backbone, so only the heads of Table 4 differ.
_HEADS = tuple(f"mlp-{name[3:]}@1280x1x1:0.036:0.072" for name in TABLE_4 for _ in range(2))
IMAGE_SETS["cifar10_features"] = replace(
    IMAGE_SETS["cifar10"],
    title="CIFAR-10 features",
    architectures=_HEADS,
    tuned=Tuned(40, 2000, whole_steps=400, warmup=1500),
    home=_HOME,
)
for _name in ("mnist5k", "mnist", "fashion_mnist"):
    IMAGE_SETS[f"{_name}_patches"] = replace(
        IMAGE_SETS[_name],
        title=f"{IMAGE_SETS[_name].title} patches",
        architectures=("mlp-128@60x1x1:0.5:0.1",),
        tuned=Tuned(),
        home=_HOME,
    )
