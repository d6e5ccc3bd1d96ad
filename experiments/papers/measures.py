"""Names of the figures that a cell's result may hold beside its accuracy."""

AUROC_CLASS = "selector AUROC, own classes"
AUROC_RIGHT = "selector AUROC, right predictions"
OVER_CLIENTS = ", deviation over clients"
RIGHT = "right labels among kept"
KEPT = "kept share"
COVERED = "proxies ever kept"
VALIDATION = "validation accuracy"
RESNET_UP, RESNET_DOWN = "ResNet-18, bytes up a round", "ResNet-18, bytes down a round"
"""Of FedAvg's cells on frozen features: what its real messages would weigh."""
TERMS = {
    "empirical": "empirical risk",
    "numerical": "numerical constraint",
    "local_distance": "local distance",
    "proxy_distance": "proxy distance",
    "misleading": "misleading knowledge",
    "ambiguous": "ambiguous knowledge",
}
"""Theorem 2's terms as they are added up, by the field of `theorem.Terms`: means over clients."""
TEST_LOSS = "l1 test loss"
BOUND = "sum"
"""Of all terms: as its distances are estimated from below, so is the bound."""
TAUGHT = "proxies that teach"
"""As a share of all."""
