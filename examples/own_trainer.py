"""Train the clients with AdamW in place of the recipe's SGD.

    python examples/own_trainer.py

A trainer is any callable that takes the training steps that are due, one `Steps` for each client,
and runs all of them. Loss, learning rate and precision are free. Records stay with their client:
every `Steps` draws from the records of its own client.
"""

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional

import secure_fd as fd


class AdamWTrainer:
    """Runs training steps with AdamW, whose state is kept over the rounds.

    rate: learning rate of every step, in place of the recipe's `Steps.rate`.
    """

    def __init__(self, rate: float = 1e-3) -> None:
        self._rate = rate
        self._optimisers: dict[nn.Module, torch.optim.Optimizer] = {}

    def __call__(self, jobs: Sequence[fd.Steps]) -> None:
        """Run all steps of all clients."""
        for job in jobs:
            network = job.trainer.model
            if network not in self._optimisers:
                parameters = network.parameters()
                self._optimisers[network] = torch.optim.AdamW(parameters, lr=self._rate)
            for _ in range(job.count):
                pixels, targets = job.batch()
                self._optimisers[network].zero_grad(set_to_none=True)
                torch.autograd.backward(functional.cross_entropy(network(pixels), targets))
                self._optimisers[network].step()


if __name__ == "__main__":
    run = fd.simulate("digits", trainer=AdamWTrainer())
    run.fit(rounds=3)
    print([round(accuracy, 3) for accuracy in run.accuracies])
