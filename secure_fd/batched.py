"""Convolution, 2 x 2 pool and ReLU of all members as one step, with a backward of its own.

Two thirds of a step's time are the convolutions' arithmetic; the rest is memory. The block touches
little of it: pixels that the pool compares are overwritten where they stand, by the larger of their
row on the way forward and by their gradients on the way back.
"""

import math
import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction, FunctionCtx, once_differentiable

from secure_fd.errors import LocalError
from secure_fd.models import Standardise

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


# Networks of equal architecture as one network: the layers of all members in one call each.
#
# Every function here takes and gives [M, B, C, H, W] or [M, B, F]: M members, B records. M = 1
# before
# the first layer that has parameters where all members see the same records.
#
# The speed is in the order of the memory: height, width, record, member, channel, slowest first.
# There the convolution of a whole batch is one convolution of one long image whose columns are B
# apart, which is what a dilation of B says; all members' are its groups; and pooling takes the
# larger
# of long contiguous runs. With few channels, as in the papers' networks, the usual order spends
# more
# time on padding channels to the width of a vector and on single pixels than on the arithmetic.
# See `convolution_block` for what a convolution, its pool and its ReLU do there.


_VALUES_AT_ONCE = 320 * 784
"""Pixels of all members together that go through the layers at once."""

_Forward = Callable[..., Tensor]
"""(layer, x, its stacked parameters) -> what follows x."""


def batched_logits(layers: nn.Module, parameters: Sequence[Tensor], pixels: Tensor) -> Tensor:
    """Logits [G, B, classes] of G members.

    layers: any member, for its layers' settings. parameters: [G, ...] each, in the order of
    `layer_parameters`. pixels: [G, B, C, H, W], or [1, B, C, H, W] the same for all members.
    """
    x, rest = pixels, iter(parameters)
    for first, *others in _blocks(layers):
        own = [next(rest) for layer in (first, *others) for _ in layer.parameters()]
        x = _FORWARD[type(first)](first, x, own)
    return x


def layer_parameters(layers: nn.Module) -> list[nn.Parameter]:
    """The parameters, layer by layer."""
    return [parameter for layer in _in_order(layers) for parameter in layer.parameters()]


def _in_order(layers: nn.Module) -> Sequence[nn.Module]:
    """As they are called: `children` leaves out a layer that comes a second time."""
    if not isinstance(layers, nn.Sequential):
        raise LocalError("only the layers of a Sequential have an order")
    return list(layers)


def _blocks(layers: nn.Module) -> Iterator[Sequence[nn.Module]]:
    """Layer by layer, but every convolution together with its pool and its ReLU."""
    rest = list(_in_order(layers))
    while rest:
        count = 3 if isinstance(rest[0], nn.Conv2d) else 1
        yield rest[:count]
        del rest[:count]


def _elementwise(layer: nn.Module, x: Tensor, _: Sequence[Tensor]) -> Tensor:
    out: Tensor = layer(x)
    return out


def _flatten(_: nn.Module, x: Tensor, __: Sequence[Tensor]) -> Tensor:
    return x.flatten(2)


def _linear(_: nn.Module, x: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    weight, *bias = parameters
    inputs = x.expand(len(weight), -1, -1)
    if not bias:
        return torch.bmm(inputs, weight.mT)
    return torch.baddbmm(bias[0].unsqueeze(1), inputs, weight.mT)


def _convolution(layer: nn.Conv2d, x: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """With pool and ReLU: of [1, M C, H, W B], in M groups, or in one where members share x."""
    weight, *bias = parameters
    members, batch, channels, height, width = x.shape
    rows, columns = map(int, layer.padding)
    image = x.permute(3, 4, 1, 0, 2).reshape(1, height, width * batch, members * channels)
    layout = Layout(
        members, batch, (rows, columns * batch), (layer.dilation[0], layer.dilation[1] * batch)
    )
    given = image.permute(0, 3, 1, 2), weight, bias[0] if bias else None, layout
    out: Tensor = ConvolutionBlock.apply(*given)  # type: ignore[no-untyped-call]
    return out.permute(3, 2, 4, 0, 1)


_FORWARD: Mapping[type[nn.Module], _Forward] = {
    Standardise: _elementwise,
    nn.ReLU: _elementwise,
    nn.Flatten: _flatten,
    nn.Linear: _linear,
    nn.Conv2d: _convolution,
}


_SUPPORTED: Mapping[type[nn.Module], Mapping[str, tuple[object, ...]]] = {
    nn.Conv2d: {"stride": ((1, 1),), "groups": (1,), "padding_mode": ("zeros",)},
    nn.MaxPool2d: {
        "kernel_size": (2, (2, 2)),
        "stride": (2, (2, 2)),
        "padding": (0, (0, 0)),
        "dilation": (1, (1, 1)),
        "ceil_mode": (False,),
        "return_indices": (False,),
    },
    nn.ReLU: {"inplace": (False,)},
    nn.Flatten: {"start_dim": (1,), "end_dim": (-1,)},
}
"""The settings that this file computes; a layer that is not named here has none that matter."""

_LETTERS: Mapping[type[nn.Module], str] = {
    Standardise: "s",
    nn.Conv2d: "c",
    nn.MaxPool2d: "p",
    nn.ReLU: "r",
    nn.Flatten: "f",
    nn.Linear: "l",
}
_ORDER = re.compile("s?(c(pr|rp))+f[lr]*")
"""Pool and ReLU give the same values and gradients in either order."""


def architecture(model: nn.Module) -> Hashable | None:
    """What models must have in common to be batched; None where this file cannot batch them.

    It can batch a Sequential of convolutions, each with a 2 x 2 pool and a ReLU, then one Flatten,
    then linear layers, all trained, in float32. Without a convolution nothing is gained: products
    of large matrices are as fast apart.
    """
    if type(model) is not nn.Sequential or not all(map(_is_supported, model)):
        return None
    if not _ORDER.fullmatch("".join(_LETTERS[type(layer)] for layer in model)):
        return None
    parameters = layer_parameters(model)
    tied = len(set(parameters)) < len(parameters)
    if tied or not all(p.requires_grad and p.dtype == torch.float32 for p in parameters):
        return None
    shapes = tuple(parameter.shape for parameter in parameters)
    return shapes, tuple(map(_settings, model))


def _is_supported(layer: nn.Module) -> bool:
    return (
        type(layer) in _LETTERS
        and not (layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks)
        and not isinstance(getattr(layer, "padding", 0), str)
        and all(
            getattr(layer, name) in good for name, good in _SUPPORTED.get(type(layer), {}).items()
        )
    )


def _settings(layer: nn.Module) -> str:
    own = {name: value for name, value in vars(layer).items() if not name.startswith("_")}
    own.pop("training")
    return f"{type(layer).__name__} {own}"


def stacked_parameters(models: Sequence[nn.Module]) -> list[Tensor]:
    """Every parameter of all models, [G, ...]; the models' own become views of it."""
    columns = zip(*(layer_parameters(model) for model in models), strict=True)
    stacked = [torch.stack([p.detach() for p in column]).contiguous() for column in columns]
    tie(models, stacked)
    return stacked


def tie(models: Sequence[nn.Module], stacked: Sequence[Tensor]) -> None:
    """Take in the parameters that stand elsewhere by now, and make them views again.

    Somebody may have given a model other memory: `model.to` does where the memory format changes.
    """
    for member, model in enumerate(models):
        for parameter, all_members in zip(layer_parameters(model), stacked, strict=True):
            view = all_members[member]
            if parameter.data_ptr() != view.data_ptr() or parameter.stride() != view.stride():
                view.copy_(parameter.detach())
                parameter.data = view


def pieces(pixels: Tensor, members: int) -> Sequence[Tensor]:
    """Pixels [M, B, ...] in equal shares of the records, so that each fits the cache."""
    values = members * pixels[0].numel()
    return pixels.chunk(math.ceil(values / _VALUES_AT_ONCE), dim=1)
