"""The circuit of votes: rows of small weights with a bound on each total, and a budget for all.

A row is a client's vote on one proxy: a weight for each class, none negative, T or less in all.
The whole message weighs B or less. With the slack of a row s_r = T - sum_c x_rc, and the rest of
the budget b = B - sum x, that is the case where every x_rc, every s_r and b are small numbers that
are not negative. Such a number is written in digits 0 to D - 1, and the circuit checks

    every digit y:   P(y) = y (y - 1) ... (y - D + 1) = 0
    the budget:      B - sum x - sum_i D^i b_i = 0

Slacks are linear in the weights and are not sent. Nor are the lowest digits of weights and slacks,
which are what is left of the number: with one digit, weights are sent as they are.

The gadget sums P over a call's digits under powers of a random rho, and the calls' results under
random factors sigma. Wires do not depend on rho, so that they are transformed once for all proofs:
the draft multiplies its powers into the wires.
"""

from functools import lru_cache
from typing import Final

import numpy as np

from secure_fd.errors import LocalError
from secure_fd.prio3.field import FieldArray, add, element, from_signed, mul, powers, sub, total
from secure_fd.prio3.flp import Circuit, Size
from secure_fd.prio3.vdaf import Prio3
from secure_fd.votes.codec import IntArray, UnitArray

ALGORITHM: Final = 0xFFFF5FD1
"""One of the draft's numbers for private use."""
PROOFS: Final = 3
"""Proofs of each report. One errs with probability 2^-55, and a liar can try 2^55 challenges."""
MAX_LANES: Final = 2**24
MAX_WEIGHT: Final = 2**16 - 1


class VoteRows(Circuit):
    """rows of `classes` weights, each row `most` or less in all, and all rows `budget` or less.

    >>> VoteRows(rows=1, classes=2, most=1, budget=1).encode(np.array([0, 1], np.uint64)).tolist()
    [0, 1, 0]
    """

    def __init__(self, rows: int, classes: int, most: int, budget: int) -> None:
        self.rows, self.classes, self.most, self.budget = rows, classes, most, budget
        self.base = 2 if most < 2 else 4 if most < 4 else 16
        self.digits = len(np.base_repr(most, self.base))
        self.budget_digits = len(np.base_repr(budget, self.base))
        numbers = rows * (classes + 1)
        checked = numbers * self.digits + self.budget_digits
        # The number of calls of the gadget for which a proof has the fewest elements.
        calls = min(
            (2**k - 1 for k in range(1, 12)), key=lambda n: -(-checked // n) + self.base * n
        )
        self.size = Size(
            # A weight stands for its lowest digit, and nothing for that of a slack.
            measurement=checked - rows,
            output=rows * classes,
            joint_rand=1 + calls,
            outputs=2,
            arity=-(-checked // calls),
            degree=self.base,
            calls=calls,
        )

    def encode(self, measurement: UnitArray) -> FieldArray:
        """[size.measurement] of weights [rows * classes]; LocalError beyond a bound."""
        rows = measurement.view(np.int64).reshape(self.rows, self.classes)
        self.check(rows)
        slack = self.most - rows.sum(axis=1, keepdims=True)
        numbers = np.concatenate([rows, slack], axis=1).reshape(-1)
        rest = np.array([self.budget - rows.sum()])
        parts = [
            rows.reshape(-1),
            *(numbers // self.base**k % self.base for k in range(1, self.digits)),
            *(rest // self.base**k % self.base for k in range(self.budget_digits)),
        ]
        return from_signed(np.concatenate(parts))

    def check(self, rows: IntArray) -> None:
        """LocalError for weights [rows, classes] beyond a bound."""
        if int(rows.min()) < 0 or int(rows.sum(axis=1).max()) > self.most:
            raise LocalError(f"a row of votes is not of weights from 0 to {self.most} in all")
        if int(rows.sum()) > self.budget:
            raise LocalError(f"votes weigh {rows.sum()}, beyond the budget of {self.budget}")

    def truncate(self, encoded: FieldArray) -> FieldArray:
        """[rows * classes] the weights."""
        return encoded[: self.size.output]

    def wires(self, encoded: FieldArray, joint: FieldArray, one: int) -> FieldArray:  # noqa: ARG002 - Circuit's
        """[1, calls, arity] all digits."""
        size, last = self.size, self.size.measurement - self.budget_digits
        weights = encoded[: size.output].reshape(self.rows, -1)
        slack = sub(element(self.most * one), total(weights))[:, None]
        numbers = np.concatenate([weights, slack], axis=1).reshape(-1)
        upper = encoded[size.output : last]
        lowest = sub(numbers, self._composed(upper.reshape(self.digits - 1, len(numbers)), 1))
        padded = np.zeros(size.calls * size.arity, dtype=np.uint64)
        digits = np.concatenate([lowest, upper, encoded[last:]])
        padded[: len(digits)] = digits
        return padded.reshape(1, size.calls, size.arity)

    def gadget(self, inputs: FieldArray, joint: FieldArray) -> FieldArray:
        """sum_j rho^j P(y_j), j from 0.

        P in pairs: (y - k)(y - D + 1 + k) = w + k (D - 1 - k), with w = y (y - D + 1).
        """
        last = self.base - 1
        paired = mul(inputs, sub(inputs, element(last)))
        vanishing = paired
        for k in range(1, self.base // 2):
            vanishing = mul(vanishing, add(paired, element(k * (last - k))))
        rho = powers(joint[:, 0], self.size.arity)
        return total(mul(vanishing, rho[:, None]))

    def outputs(
        self, encoded: FieldArray, called: FieldArray, joint: FieldArray, one: int
    ) -> FieldArray:
        """[Q, 2] the gadget's results under sigma, and the error of the budget."""
        checked = total(mul(called, joint[:, 1:]))
        rest = encoded[self.size.measurement - self.budget_digits :]
        spent = total(encoded[: self.size.output])[None]
        off = sub(element(self.budget * one), add(spent, self._composed(rest[:, None], 0)))
        return np.stack([checked, np.repeat(off, len(joint))], axis=1)

    def _composed(self, digits: FieldArray, first: int) -> FieldArray:
        """[n] sum_i D^(first + i) y_i of digits [k, n]."""
        weights = [self.base ** (first + k) for k in range(len(digits))]
        return total(mul(digits, np.array(weights, np.uint64)[:, None]), axis=0)


@lru_cache(maxsize=16)
def vote_sum(rows: int, classes: int, most: int, budget: int) -> Prio3:
    """Prio3 of votes between two aggregators; made once for rounds of one form.

    >>> vote_sum(512, 10, 3, 512 * 3).circuit.size.proof
    307
    """
    return Prio3(VoteRows(rows, classes, most, budget), ALGORITHM, PROOFS)
