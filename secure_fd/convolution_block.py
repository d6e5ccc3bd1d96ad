"""Convolution, 2 x 2 pool and ReLU of all members as one step, with a backward of its own.

Two thirds of a step's time are the convolutions' arithmetic; the rest is memory. The block touches
little of it: pixels that the pool compares are overwritten where they stand, by the larger of their
row on the way forward and by their gradients on the way back.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction, FunctionCtx, once_differentiable

_Corners = tuple[Tensor, Tensor, Tensor, Tensor]


class Layout(NamedTuple):
    """How the members' convolutions are one: `batch` columns lie between two neighbours."""

    members: int
    batch: int
    padding: tuple[int, int]
    dilation: tuple[int, int]


class ConvolutionBlock(torch.autograd.Function):
    """(image [1, M C, H, W B], weight [M, O, C, k, k], bias [M, O] or None) -> [H/2, W/2, B, M, O].

    Odd last rows and columns are left out. The gradient goes to the first of equals, row by row, as
    in torch. A second backward through the same graph is an error, because the first one overwrites
    what it reads.
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx, image: Tensor, weight: Tensor, bias: Tensor | None, layout: Layout
    ) -> Tensor:
        """What follows an image, and what the way back will need."""
        flat = None if bias is None else bias.flatten()
        convolved = torch.conv2d(
            image,
            weight.flatten(0, 1),
            flat,
            padding=layout.padding,
            dilation=layout.dilation,
            groups=layout.members,
        ).contiguous(memory_format=torch.channels_last)
        first, second, third, fourth = _corners(_rows(convolved, layout))
        torch.maximum(first, second, out=second)
        torch.maximum(third, fourth, out=fourth)
        # ReLU in place: where it cuts off, no gradient passes, whichever pixel was the largest.
        largest = torch.maximum(second, fourth).clamp_min_(0)
        ctx.save_for_backward(image, weight, convolved, largest)
        ctx.layout = layout  # type: ignore[attr-defined]
        ctx.has_bias = bias is not None  # type: ignore[attr-defined]
        return largest.view(*largest.shape[:2], layout.batch, *weight.shape[:2])

    @staticmethod
    @once_differentiable
    def backward(
        ctx: BackwardCFunction, gradient: Tensor
    ) -> tuple[Tensor | None, Tensor, Tensor | None, None]:
        """Gradients of image, weight and bias."""
        saved: tuple[Tensor, ...] = ctx.saved_tensors
        image, weight, convolved, largest = saved
        layout: Layout = ctx.layout  # type: ignore[attr-defined]
        passed = torch.ops.aten.threshold_backward(gradient.reshape(largest.shape), largest, 0)
        # Every pooled gradient goes to one pixel, so their sum is that of a quarter of the values.
        to_bias = passed.view(-1, weight.shape[:2].numel()).sum(0).view(weight.shape[:2])
        rows = _rows(convolved, layout)
        _spread(_corners(rows), largest, passed)
        rows[2 * len(largest) :], rows[:, 2 * largest.shape[1] :] = 0, 0
        to_image, to_weight, _ = torch.ops.aten.convolution_backward(
            *(convolved, image, weight.flatten(0, 1), None, [1, 1]),
            *(layout.padding, layout.dilation, False, [0, 0], layout.members),
            [ctx.needs_input_grad[0], True, False],
        )
        return to_image, to_weight.view_as(weight), to_bias if ctx.has_bias else None, None  # type: ignore[attr-defined]


def _rows(convolved: Tensor, layout: Layout) -> Tensor:
    """The same memory as [H, W, B M O]."""
    height = convolved.shape[2]
    return convolved.permute(0, 2, 3, 1).view(height, -1, layout.batch * convolved.shape[1])


def _corners(rows: Tensor) -> _Corners:
    """Upper left, upper right, lower left and lower right of every 2 x 2."""
    even = rows[: len(rows) // 2 * 2, : rows.shape[1] // 2 * 2]
    return even[::2, ::2], even[::2, 1::2], even[1::2, ::2], even[1::2, 1::2]


def _spread(corners: _Corners, largest: Tensor, gradient: Tensor) -> None:
    """Overwrite corners, of which the second and fourth hold their row's larger, by gradients.

    gradient: overwritten too. Comparisons give 1.0 or 0.0, four times as fast as booleans.
    """
    first, upper, third, lower = corners
    to_upper = torch.eq(upper, largest, out=torch.empty_like(largest)).mul_(gradient)
    to_lower = gradient.sub_(to_upper)
    chosen = torch.empty_like(largest)
    for left, row, share in ((first, upper, to_upper), (third, lower, to_lower)):
        torch.mul(torch.eq(left, row, out=chosen), share, out=left)
        torch.sub(share, left, out=row)
