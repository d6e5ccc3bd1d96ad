"""Reconstruction of records from an update: closed form, labels, gradient matching."""

from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cosine_similarity, cross_entropy

from attacks.core.base import FloatArray
from attacks.core.fit import network, on_device
from attacks.core.images import class_means
from attacks.core.view import Capability, Public, View, read_unmasked
from secure_fd.errors import LocalError, MissingCapabilityError
from secure_fd.methods.fedavg import parameter_codec
from secure_fd.protocol.transcript import Float32Array


@dataclass(frozen=True, slots=True, eq=False)
class Scaling:
    """The affine map, pixel by pixel, of the layers before the first learnt one.

    black, white: [P] what that layer is given for a black and for a white image.
    """

    shape: tuple[int, ...]
    black: Tensor = field(repr=False)
    white: Tensor = field(repr=False)

    def pixels(self, given: Tensor) -> Tensor:
        """[n, P] pixels behind what the layer was given [n, P]."""
        return (given - self.black) / (self.white - self.black)

    def images(self, pixels: Tensor) -> Tensor:
        """Pixels [n, P] as float32 images [n, C, H, W], or as vectors [n, D]."""
        return pixels.float().view(-1, *self.shape)

    def within(self, pixels: Tensor) -> Tensor:
        """Pixels [n, P] cut to [0, 1]; the entries of vectors as they are."""
        return pixels if len(self.shape) == 1 else pixels.clamp(0, 1)


@dataclass(frozen=True, slots=True)
class FirstLayer:
    """A fully connected first layer of `outputs` neurons, and the scaling before it.

    grid: whether records are known to have 8-bit pixels.

    It gives its inputs away: with y = W x + b, a record adds d_i x to the gradient of row W_i and
    d_i to that of b_i, where d_i is the loss's derivative in y_i. Their ratio is x wherever one
    record alone drives neuron i (Phong et al. 2018; Geiping et al. 2020, proposition 3.1), and
    else an affine mixture of the batch.
    """

    outputs: int
    scaling: Scaling
    grid: bool

    def rows(self, flat: Tensor) -> Tensor:
        """[outputs, P + 1] gradients of its weights and, last, biases, in a flat one [m]."""
        inputs = self.scaling.black.numel()
        size = self.outputs * inputs
        weights, biases = flat[:size], flat[size : size + self.outputs]
        return torch.cat([weights.view(self.outputs, inputs), biases[:, None]], dim=1)


def split_fixed(model: nn.Module) -> tuple[nn.Sequential, nn.Module]:
    """The layers that learn nothing, and the first that does, of a sequential network."""
    layers = list(model.children()) if isinstance(model, nn.Sequential) else []
    for place, layer in enumerate(layers):
        if next(layer.parameters(), None) is not None:
            return nn.Sequential(*layers[:place]), layer
    raise MissingCapabilityError("missing a sequential architecture whose first layer is known")


def scaling_before(fixed: nn.Module, shape: tuple[int, ...]) -> Scaling:
    """The fixed layers' map, asked about two images of `shape`.

    Raises MissingCapabilityError where it is not one-to-one pixel by pixel.
    """
    with torch.no_grad():
        asked = torch.stack([torch.zeros(shape), torch.full(shape, 0.5), torch.ones(shape)])
        black, grey, white = fixed(asked).double().flatten(1)
    straight = torch.allclose(black + white, 2 * grey, atol=1e-5)
    if black.numel() != torch.Size(shape).numel() or not straight or (black == white).any():
        raise MissingCapabilityError("missing a pixelwise scaling before the first learnt layer")
    return Scaling(shape, black, white)


def first_layer(public: Public) -> FirstLayer:
    """The first layer of the shared architecture, where it is fully connected with biases."""
    fixed, layer = split_fixed(public.architecture(0))
    if not isinstance(layer, nn.Linear) or layer.bias is None:
        raise MissingCapabilityError("missing a fully connected first layer with biases")
    scaling = scaling_before(fixed, tuple(public.proxies.shape[1:]))
    return FirstLayer(layer.out_features, scaling, on_grid(public.proxies))


GREYS = 255
"""An 8-bit pixel is a multiple of 1 / GREYS, as the proxies show."""
_NEAR = 0.25
"""Share of a grey. A mixture has 100 or more pixels between greys; half are this near to one."""
_SLACK = 0.05
"""Distance outside [0, 1] at which a pixel of a ratio may lie."""


def on_grid(images: Tensor) -> bool:
    """Return whether all pixels are 8-bit greys."""
    greys = images.double() * GREYS
    return bool((greys - greys.round()).abs().max() < 1e-3)


def invert_first_layer(layer: FirstLayer, gradient: Tensor, records: int) -> Tensor:
    """At most `records` images behind one flat gradient [m] of as many records, in float64."""
    rows = layer.rows(gradient)
    if records == 1:
        together = rows[:, -1] @ rows  # all neurons, by least squares
        return _chosen(layer, _ratios(layer, together[None]), 1)
    return invert_rows(layer, _denoised(rows, records), records)


def invert_rows(layer: FirstLayer, rows: Tensor, records: int) -> Tensor:
    """Images behind rows [n, P + 1] of gradients, each of one record or a mixture."""
    pixels = _ratios(layer, rows[rows[:, -1].abs().argsort(descending=True)])
    if len(layer.scaling.shape) > 1:
        pixels = pixels[((pixels >= -_SLACK) & (pixels <= 1 + _SLACK)).all(dim=1)]
    return _chosen(layer, pixels, records)


def _denoised(rows: Tensor, records: int) -> Tensor:
    """Rows [outputs, P + 1] without what `records` records cannot have caused.

    Each record adds a matrix of rank one; fixed point and noise add one of full rank.
    """
    if records >= min(rows.shape):
        return rows
    directions = torch.linalg.eigh(rows.T @ rows).eigenvectors[:, -records:]
    return torch.as_tensor(rows @ directions @ directions.T)


def _ratios(layer: FirstLayer, rows: Tensor) -> Tensor:
    """[n, P] pixels that rows of driven neurons stand for."""
    driven = rows[rows[:, -1] != 0]
    return layer.scaling.pixels(driven[:, :-1] / driven[:, -1:])


def _chosen(layer: FirstLayer, pixels: Tensor, records: int) -> Tensor:
    """At most `records` images: single records first, then the mixtures nearest to one.

    An image whose pixels are all near a grey is a single record; a mixture is not.
    """
    pixels = layer.scaling.within(pixels)
    single = pixels[:0]
    if layer.grid:
        greys = pixels * GREYS
        rounded = greys.round() + 0.0  # no -0.0, whose bytes are not those of black
        exact = ((greys - rounded).abs() < _NEAR).all(dim=1)
        single, pixels = rounded[exact] / GREYS, pixels[~exact]
        single = single[distinct(single)][:records]
    mixtures = _extreme_points(single, pixels, records - len(single))
    return layer.scaling.images(torch.cat([single, mixtures]))


def _extreme_points(known: Tensor, mixtures: Tensor, count: int) -> Tensor:
    """At most `count` of the mixtures: those nearest to a single unknown record.

    Successive projection (Gillis and Vavasis 2014): of points in a convex hull the longest is
    near a corner; project it out and go on. Known corners are projected out first.
    """
    left = torch.nn.functional.pad(mixtures, (0, 1), value=1.0)
    corners = torch.nn.functional.pad(known, (0, 1), value=1.0)
    basis = torch.linalg.qr(corners.T).Q
    left = left - left @ basis @ basis.T
    chosen: list[int] = []
    for _ in range(min(count, len(left))):
        lengths = left.norm(dim=1)
        chosen.append(int(lengths.argmax()))
        direction = left[chosen[-1]] / lengths.amax().clamp(min=1e-12)
        left = left - torch.outer(left @ direction, direction)
    return mixtures[torch.tensor(chosen, dtype=torch.int64)]


def distinct(images: Tensor) -> Tensor:
    """[n] places of distinct images, of each its first use.

    >>> distinct(torch.tensor([[1.0], [0.0], [1.0]])).tolist()
    [0, 1]
    """
    first: dict[bytes, int] = {}
    for place, image in enumerate(images):
        first.setdefault(image.numpy().tobytes(), place)
    return torch.tensor([*first.values()], dtype=torch.int64)


CLIENT_UPDATES = (
    frozenset({Capability.CLIENT_PARAMETERS, Capability.GLOBAL_PARAMETERS}),
    frozenset({Capability.READ_PAYLOADS, Capability.GLOBAL_PARAMETERS}),
)
MEAN_UPDATE = frozenset({Capability.GLOBAL_PARAMETERS})


EVERYONE = -1
"""In place of a client: the update is the mean over all of them."""
LEARNING_RATE = 0.1
"""Learning rate of the local steps, which is public. Another rate only scales the result."""


@dataclass(frozen=True, slots=True, eq=False)
class Updates:
    """The updates of one round, all from the same parameters.

    start: [m] parameters before. gradients: [T, m] float64, (start - end) / learning rate: the
    gradient of one local step, or the sum over several. owners: of each update the client, or
    EVERYONE. records: as many as each update is read as.
    """

    start: Tensor = field(repr=False)
    gradients: Tensor = field(repr=False)
    owners: tuple[int, ...]
    records: int


def client_updates(view: View, records: int) -> Updates:
    """Every readable client's update of the newest round, clients ascending.

    Payloads are tried where no upload is readable: masks hide them only if they were applied.

    Args:
        view: of the server.
        records: behind one client's update.
    """
    view.require_any(*CLIENT_UPDATES)
    ends_of = view.models[-1].uploads or _unmasked(view)
    if not ends_of:
        in_clear = Capability.CLIENT_PARAMETERS.value
        raise MissingCapabilityError(f"missing {in_clear} ({view.attacker})")
    clients = sorted(ends_of)
    ends = np.stack([ends_of[client] for client in clients])
    return _updates(_before(view), ends, tuple(clients), records)


def mean_update(view: View, records: int, start: Float32Array | None = None) -> Updates:
    """The cohort's mean update of the newest round: one update of as many times the records.

    It is a weighted mean where clients hold unequally many records, and is read as a plain one.

    Args:
        view: of any party that holds two global models.
        records: behind one client's update.
        start: [m] what clients began from, where that was not the mean of the round before.
    """
    view.require(Capability.GLOBAL_PARAMETERS)
    before = _before(view) if start is None else start
    mean = view.models[-1].result[None]
    return _updates(before, mean, (EVERYONE,), records * view.public.n_clients)


def readable_updates(view: View, records: int) -> Updates:
    """Every client's update where one is readable, else the cohort's mean, which masks leave."""
    try:
        return client_updates(view, records)
    except MissingCapabilityError:
        return mean_update(view, records)


def _unmasked(view: View) -> dict[int, Float32Array]:
    """Return the parameters of each unmasked payload of the newest round, by client."""
    newest, n_clients = view.models[-1], view.public.n_clients
    codec = parameter_codec((1.0,) * n_clients)
    length = len(newest.result)
    read = read_unmasked(newest.payloads or {}, n_clients, codec.levels, length)
    return codec.decode_each(read) or {}


def _before(view: View) -> Float32Array:
    if len(view.models) < 2:
        raise MissingCapabilityError(
            f"missing global parameters from before the newest round ({view.attacker})"
        )
    return view.models[-2].result


def _updates(
    start: Float32Array, ends: Float32Array, owners: tuple[int, ...], records: int
) -> Updates:
    moved = start.astype(np.float64) - ends.astype(np.float64)
    gradients = torch.from_numpy(moved / LEARNING_RATE)
    return Updates(torch.from_numpy(start.copy()), gradients, owners, records)


def infer_labels(public: Public, updates: Updates) -> Tensor:
    """[T, records] class ids, ascending, of every update.

    Only classes that are present have negative entries in the gradient of the last bias. A single
    record's label is the only one (iDLG, Zhao et al. 2020): certain. The labels of more records
    are an estimate, in proportion to the entries.
    """
    pulled = classes_pulled(public, updates).clip(min=0)
    return torch.stack([_apportion(row, updates.records) for row in pulled])


def classes_pulled(public: Public, updates: Updates) -> FloatArray:
    """[T, C] how much each update raised the bias of each class; negative where it lowered it.

    Only classes that are among an update's records can be raised by its gradient. Raises LocalError
    unless the last parameter is one bias a class.
    """
    model = network(public, updates.start)
    if list(model.parameters())[-1].shape != (public.n_classes,):
        raise LocalError("architecture: its last parameter is not one bias a class")
    return np.asarray(-updates.gradients[:, -public.n_classes :].numpy())


def _apportion(shares: FloatArray, records: int) -> Tensor:
    """[records] labels in proportion to shares [C], or even where all are 0; largest remainders."""
    given = shares if shares.sum() > 0 else np.ones_like(shares)
    wanted = given / given.sum() * records
    counts = np.floor(wanted).astype(np.int64)
    counts[np.argsort(counts - wanted)[: records - counts.sum()]] += 1
    return torch.from_numpy(np.repeat(np.arange(len(given)), counts))


def newest_draw(trainer_seed: int, population: int, batch: int, rounds: int) -> Tensor:
    """[batch] indices that a `Trainer` of this seed drew in the last of its rounds of one step."""
    generator = torch.Generator().manual_seed(trainer_seed)
    return [torch.randint(population, (batch,), generator=generator) for _ in range(rounds)][-1]


def step_gradient(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """[m] gradient of the mean loss on images [records, C, H, W]."""

    def loss(parameters: dict[str, Tensor]) -> Tensor:
        return cross_entropy(functional_call(model, parameters, (images,)), labels)

    slopes = grad(loss)({name: p.detach() for name, p in model.named_parameters()})
    return torch.cat([part.flatten() for part in slopes.values()])


_RATE = 0.1
_DECAY_AT = (3 / 8, 5 / 8, 7 / 8)
_SMOOTHNESS = 0.02
"""Weight of the total variation. Of .01, .02 and .05 it was the best in the mean over public images
taken as private, barely above .01; the published 0.2 blurs digits."""
_SPREAD = 0.2
"""Deviation of the noise around the public class mean where the search begins."""


def search(public: Public, updates: Updates, labels: Tensor, iterations: int, seed: int) -> Tensor:
    """[T, records, C, H, W] images for every update by gradient matching (Geiping et al. 2020).

    Minimises 1 - cos(g(x), g*) + weight * TV(x) over x by Adam on the sign of the gradient, in the
    scale of the first learnt layer's input, every pixel kept in [0, 1]. The learning rate and its
    decay are published.

    Args:
        public: with the network that trained.
        updates: what is matched.
        labels: [T, records].
        iterations: of Adam.
        seed: of the noise around the public class means, where the search begins.
    """
    public.pixels()
    model = network(public, updates.start)
    scaling = scaling_before(split_fixed(model)[0], tuple(public.proxies.shape[1:]))
    wanted = updates.gradients.float()
    ends = torch.stack([scaling.black, scaling.white]).float().view(2, *scaling.shape)
    black, white = ends.unbind()
    noise = torch.Generator().manual_seed(seed)
    guess = black + class_means(public)[labels] * (white - black)
    given = guess + _SPREAD * torch.randn(guess.shape, generator=noise)
    with on_device(model) as on:
        given, labels, wanted, ends = (each.to(on) for each in (given, labels, wanted, ends))
        return _minimise(model, given, labels, wanted, ends, iterations).cpu()


def _minimise(
    model: nn.Module, given: Tensor, labels: Tensor, wanted: Tensor, ends: Tensor, iterations: int
) -> Tensor:
    """Images [T, records, C, H, W] after the search.

    given: where it begins, in the scale of the first learnt layer's input. ends: [2, C, H, W] black
    and white in that scale.
    """
    black, white = ends.unbind()
    low, high = torch.minimum(black, white), torch.maximum(black, white)
    given = given.clamp(low, high).requires_grad_()
    optimiser = torch.optim.Adam([given], _RATE)
    milestones = [int(iterations * share) for share in _DECAY_AT]
    decay = torch.optim.lr_scheduler.MultiStepLR(optimiser, milestones, gamma=0.1)
    for _ in range(iterations):
        images = (given - black) / (white - black)
        loss = mismatch(model, images, labels, wanted) + _SMOOTHNESS * _total_variation(given)
        (slope,) = torch.autograd.grad(loss.sum(), given)
        given.grad = slope.sign()
        optimiser.step()
        decay.step()
        with torch.no_grad():
            given.clamp_(low, high)
    return ((given.detach() - black) / (white - black)).clamp(0, 1)


def mismatch(model: nn.Module, images: Tensor, labels: Tensor, wanted: Tensor) -> Tensor:
    """[T] one minus the cosine of gradients wanted [T, m] and those of the images' mean losses.

    images: [T, records, C, H, W]. labels: [T, records].
    """
    made = vmap(partial(step_gradient, model))(images, labels)
    return 1 - cosine_similarity(made, wanted, dim=1)


def _total_variation(images: Tensor) -> Tensor:
    """[T] mean absolute difference of neighbours, over images [T, records, C, H, W]."""
    down = (images[..., 1:, :] - images[..., :-1, :]).abs().flatten(1).mean(dim=1)
    across = (images[..., 1:] - images[..., :-1]).abs().flatten(1).mean(dim=1)
    return down + across
