"""What an update shows of the records that made it: closed form, labels, gradient matching."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import partial

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cosine_similarity, cross_entropy, softmax

from attacks.core.base import FloatArray, Labelled
from attacks.core.fit import network, on_device, predict
from attacks.core.view import Capability, Public, View, read_unmasked
from secure_fd.errors import ConfigurationError, LocalError, MissingCapabilityError
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

    @property
    def contrast(self) -> Tensor:
        """[P] how much one unit of a pixel changes what the layer is given."""
        return self.white - self.black

    def pixels(self, given: Tensor) -> Tensor:
        """[n, P] pixels behind what the layer was given [n, P]."""
        return (given - self.black) / self.contrast

    def images(self, pixels: Tensor) -> Tensor:
        """Pixels [n, P] as float32 images [n, C, H, W] in [0, 1], or as vectors [n, D]."""
        return self.within(pixels).float().view(-1, *self.shape)

    def within(self, pixels: Tensor) -> Tensor:
        """Pixels [n, P] cut to [0, 1]; the entries of vectors as they are."""
        return pixels if len(self.shape) == 1 else pixels.clamp(0, 1)


@dataclass(frozen=True, slots=True)
class FirstLayer:
    """A fully connected first layer of `outputs` neurons, and the scaling before it.

    It gives its inputs away: with y = W x + b, a record adds d_i x to the gradient of row W_i and
    d_i to that of b_i, where d_i is the loss's derivative in y_i. Their ratio is x wherever one
    record alone drives neuron i (Phong et al. 2018; Geiping et al. 2020, proposition 3.1), and
    else an affine mixture of the batch.
    """

    outputs: int
    scaling: Scaling

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
    return FirstLayer(layer.out_features, scaling_before(fixed, tuple(public.proxies.shape[1:])))


GREYS = 255
"""An 8-bit pixel is a multiple of 1 / GREYS, as anybody sees on the proxies."""
_NEAR = 0.25
"""Of a grey. A mixture has a hundred pixels or more between greys, of which half are this near."""
_SLACK = 0.05
"""How far outside [0, 1] a pixel of a ratio may lie."""


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """images: [n, C, H, W] or [n, D], one a record at most; the first `certain` are on the grid.

    An image is certain when every pixel is near a grey. A mixture is not, so the attacker knows
    without the truth that it has read a single record, to the last bit.
    """

    images: Tensor = field(repr=False)
    certain: int


def on_grid(images: Tensor) -> bool:
    """Whether all pixels are 8-bit greys."""
    greys = images.double() * GREYS
    return bool((greys - greys.round()).abs().max() < 1e-3)


def invert_first_layer(layer: FirstLayer, gradient: Tensor, records: int, *, grid: bool) -> Found:
    """Images behind one flat gradient [m] of `records` records, in float64.

    grid: the records are known to have 8-bit pixels.
    """
    rows = layer.rows(gradient)
    if records == 1:
        return _found(layer, _one_record(layer, rows), records, grid=grid)
    return invert_rows(layer, _denoised(rows, records), records, grid=grid)


def invert_rows(layer: FirstLayer, rows: Tensor, records: int, *, grid: bool) -> Found:
    """Images behind rows [n, P + 1] of gradients, each of one record or a mixture."""
    return _found(layer, _plausible(layer, rows), records, grid=grid)


def _found(layer: FirstLayer, pixels: Tensor, records: int, *, grid: bool) -> Found:
    certain, rest = _read_off(pixels) if grid else (pixels[:0], pixels)
    certain = certain[:records]
    mixtures = _extreme_points(certain, rest, records - len(certain))
    return Found(layer.scaling.images(torch.cat([certain, mixtures])), len(certain))


def _denoised(rows: Tensor, records: int) -> Tensor:
    """Rows [outputs, P + 1] without what `records` records cannot have caused.

    Each record adds a matrix of rank one; fixed point and noise add one of full rank.
    """
    if records >= min(rows.shape):
        return rows
    directions = torch.linalg.eigh(rows.T @ rows).eigenvectors[:, -records:]
    return torch.as_tensor(rows @ directions @ directions.T)


def _one_record(layer: FirstLayer, rows: Tensor) -> Tensor:
    """[1, P] pixels from all neurons by least squares; none where no neuron was driven."""
    biases = rows[:, -1]
    power = biases.square().sum()
    given = (biases @ rows[:, :-1] / power)[None]
    return layer.scaling.within(layer.scaling.pixels(given[given.isfinite().all(dim=1)]))


def _plausible(layer: FirstLayer, rows: Tensor) -> Tensor:
    """[n, P] pixels of the ratios that may be images, most strongly driven neuron first."""
    driven = rows[rows[:, -1].abs().argsort(descending=True)]
    driven = driven[driven[:, -1] != 0]
    pixels = layer.scaling.pixels(driven[:, :-1] / driven[:, -1:])
    if len(layer.scaling.shape) == 1:
        return pixels
    inside = (pixels >= -_SLACK) & (pixels <= 1 + _SLACK)
    return pixels[inside.all(dim=1)].clamp(0, 1)


def _read_off(pixels: Tensor) -> tuple[Tensor, Tensor]:
    """Distinct images on the grid, strongest first, and the candidates that are not."""
    greys = pixels * GREYS
    rounded = greys.round() + 0.0  # no -0.0, whose bytes are not those of black
    exact = ((greys - rounded).abs() < _NEAR).all(dim=1)
    images, seen = torch.unique(rounded[exact], dim=0, return_inverse=True)
    places = torch.arange(len(seen))
    first = torch.full((len(images),), len(seen)).scatter_reduce(0, seen, places, "amin")
    return images[first.argsort()] / GREYS, pixels[~exact]


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


CLIENT_UPDATES = (
    frozenset({Capability.CLIENT_PARAMETERS, Capability.GLOBAL_PARAMETERS}),
    frozenset({Capability.READ_PAYLOADS, Capability.GLOBAL_PARAMETERS}),
)
MEAN_UPDATE = frozenset({Capability.GLOBAL_PARAMETERS})


@dataclass(frozen=True, slots=True)
class Recipe:
    """How every client trains in a round, which is public. batch: records of a local step.

    shares: of each client, its records over those of the largest; None where all hold equally many.
    """

    batch: int
    steps: int = 1
    learning_rate: float = 0.1
    shares: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("batch", "steps", "learning_rate"):
            value = getattr(self, name)
            if not 0 < value < np.inf:
                raise ConfigurationError(name, value, "use a finite number above 0")

    @property
    def records(self) -> int:
        """Records, repeats counted, behind one client's update."""
        return self.batch * self.steps


@dataclass(frozen=True, slots=True, eq=False)
class Updates:
    """The updates of one round, all from the same parameters.

    start: [m] parameters before. gradients: [T, m] float64, (start - end) / learning rate: the
    gradient of one local step, or the sum over several. clients: of each update, those whose
    training it is the mean of. records: behind each update, repeats counted.
    """

    start: Tensor = field(repr=False)
    gradients: Tensor = field(repr=False)
    clients: tuple[tuple[int, ...], ...]
    records: int

    def __len__(self) -> int:
        return len(self.clients)


def client_updates(view: View, recipe: Recipe) -> Updates:
    """Every readable client's update of the newest round, clients ascending.

    Payloads are tried where no upload is readable: masks hide them only if they were applied.
    """
    view.require_any(*CLIENT_UPDATES)
    start = _before(view)
    ends_of = view.models[-1].uploads or _unmasked(view, recipe)
    if not ends_of:
        in_clear = Capability.CLIENT_PARAMETERS.value
        raise MissingCapabilityError(f"missing {in_clear} ({view.attacker})")
    clients = sorted(ends_of)
    ends = np.stack([ends_of[client] for client in clients])
    return _updates(start, ends, tuple((k,) for k in clients), recipe)


def mean_update(view: View, recipe: Recipe, told: Float32Array | None = None) -> Updates:
    """The cohort's mean update of the newest round: one update of as many times the records.

    told: [m] what clients began from, where that was not the mean of the round before. Exact where
    clients hold equally many records; else a weighted mean, treated as a plain one.
    """
    view.require(*MEAN_UPDATE)
    end = view.models[-1].result[None]
    return _updates(
        _before(view) if told is None else told, end, (tuple(range(view.public.n_clients)),), recipe
    )


def readable_updates(view: View, recipe: Recipe) -> Updates:
    """Every client's update where one is readable, else the cohort's mean, which masks leave."""
    try:
        return client_updates(view, recipe)
    except MissingCapabilityError:
        return mean_update(view, recipe)


def _unmasked(view: View, recipe: Recipe) -> dict[int, Float32Array]:
    """By client, the parameters of each payload of the newest round that nothing masks."""
    newest, n_clients = view.models[-1], view.public.n_clients
    codec = parameter_codec(recipe.shares or (1.0,) * n_clients)
    length = len(newest.result)
    read = {
        client: read_unmasked(words, n_clients, codec.levels, length)
        for client, words in (newest.payloads or {}).items()
    }
    return codec.decode_each({k: v for k, v in read.items() if v is not None}) or {}


def _before(view: View) -> Float32Array:
    if len(view.models) < 2:
        raise MissingCapabilityError(
            f"missing global parameters from before the newest round ({view.attacker})"
        )
    return view.models[-2].result


def _updates(
    start: Float32Array, ends: Float32Array, clients: tuple[tuple[int, ...], ...], recipe: Recipe
) -> Updates:
    moved = start.astype(np.float64) - ends.astype(np.float64)
    return Updates(
        torch.from_numpy(start.copy()),
        torch.from_numpy(moved / recipe.learning_rate),
        clients,
        recipe.records * len(clients[0]),
    )


_SUM_TO_ONE = 10.0


def infer_labels(public: Public, updates: Updates, steps: int) -> Tensor:
    """[T, records] class ids, ascending, of every update of `steps` local steps.

    A single record's label is the only negative entry (iDLG, Zhao et al. 2020): certain. Of more
    records the labels are an estimate. In one step, shares s of classes satisfy
    s - E[p | s] = -gradient, where a class's mean prediction is taken from public images of the
    class (after Geng et al. 2021). Over several steps predictions move too fast for that: there
    the negative entries, which only classes that are present can have, are taken in proportion.
    """
    model = network(public, updates.start)
    biases = _last_biases(public, model, updates)
    if updates.records == 1:
        return biases.argmin(dim=1, keepdim=True)
    if steps > 1:
        return torch.stack(
            [_apportion(row, updates.records) for row in (-biases).clamp(min=0).numpy()]
        )
    expected = _class_predictions(public, model)
    return torch.stack([_apportion(_shares(row, expected), updates.records) for row in biases])


def classes_pulled(public: Public, updates: Updates) -> FloatArray:
    """[T, C] how much each update raised the bias of each class; negative where it lowered it.

    Only classes that are among an update's records can be raised by its gradient.
    """
    model = network(public, updates.start)
    return np.asarray(-_last_biases(public, model, updates).numpy())


def _last_biases(public: Public, model: nn.Module, updates: Updates) -> Tensor:
    """[T, C] gradients of the last bias. LocalError unless the last parameter is one a class."""
    if list(model.parameters())[-1].shape != (public.n_classes,):
        raise LocalError("architecture: its last parameter is not one bias a class")
    return updates.gradients[:, -public.n_classes :]


def _class_predictions(public: Public, model: nn.Module) -> Tensor:
    """[C, C] mean prediction for public images of each class; of all where labels are missing."""
    answers = softmax(predict(model, public.proxies).double(), dim=1)
    if public.labels is None:
        return answers.mean(dim=0).expand(public.n_classes, -1)
    members = [answers[public.labels == c] for c in range(public.n_classes)]
    return torch.stack([(own if len(own) else answers).mean(dim=0) for own in members])


def _shares(biases: Tensor, expected: Tensor) -> FloatArray:
    """[C] shares of classes that fit best, by non-negative least squares."""
    classes = len(biases)
    system = np.vstack([np.eye(classes) - expected.numpy().T, np.full(classes, _SUM_TO_ONE)])
    shares, _ = nnls(system, np.append(-biases.numpy(), _SUM_TO_ONE))
    return np.asarray(shares)


def _apportion(shares: FloatArray, records: int) -> Tensor:
    """[records] labels in proportion to shares [C], or even where all are 0; largest remainders."""
    given = shares if shares.sum() > 0 else np.ones_like(shares)
    wanted = given / given.sum() * records
    counts = np.floor(wanted).astype(np.int64)
    counts[np.argsort(counts - wanted)[: records - counts.sum()]] += 1
    return torch.from_numpy(np.repeat(np.arange(len(given)), counts))


_Parameters = dict[str, Tensor]
_RELATIVE = 1e-3
_ABSOLUTE = 4e-6
"""Of an entry of a gradient: fixed point and float32, divided by a learning rate near 0.1.

Of clients with the records of the largest; fixed point rounds smaller ones more coarsely."""


def newest_draw(trainer_seed: int, population: int, recipe: Recipe, rounds: int) -> Tensor:
    """[records] indices that a `Trainer` of this seed drew in the last of its rounds."""
    generator = torch.Generator().manual_seed(trainer_seed)
    batches = [
        torch.randint(population, (recipe.batch,), generator=generator)
        for _ in range(rounds * recipe.steps)
    ]
    return torch.cat(batches[-recipe.steps :])


def check_explained(
    public: Public, updates: Updates, recipe: Recipe, trained: Mapping[int, Labelled]
) -> None:
    """Raise LocalError unless training on these records makes the updates.

    For scoring: an experiment holds clients and seeds, so it can draw their batches again; what is
    drawn must make the update that the transcript holds, or the truth would be about other records.

    trained: by client, its records [recipe.records] in the order of its local steps. A mean over
    clients is weighted by `recipe.shares`.
    """
    model = network(public, updates.start)
    shares = torch.tensor(recipe.shares or (1.0,) * len(trained), dtype=torch.float64)
    for clients, gradient in zip(updates.clients, updates.gradients, strict=True):
        own = [trained[k] for k in clients]
        made = [unrolled(model, recipe, each.images, each.labels).double() for each in own]
        weights = shares[list(clients)]
        mean = torch.stack(made).T @ (weights / weights.sum())
        apart = (mean - gradient).norm()
        absolute = _ABSOLUTE / weights.mean()  # fixed point rounds what a share has scaled down
        allowed = _RELATIVE * gradient.norm() + absolute * len(gradient) ** 0.5
        if apart > allowed:
            raise LocalError(
                f"truth: training on the drawn records misses the update of clients {clients} by "
                f"{apart:.2g}, where {allowed:.2g} is allowed"
            )


def unrolled(model: nn.Module, recipe: Recipe, images: Tensor, labels: Tensor) -> Tensor:
    """[m] sum of the gradients of one client's local steps on images [records, C, H, W]."""

    def loss(parameters: _Parameters, pixels: Tensor, classes: Tensor) -> Tensor:
        return cross_entropy(functional_call(model, parameters, (pixels,)), classes)

    here: _Parameters = {name: p.detach() for name, p in model.named_parameters()}
    slopes = []
    each = (torch.split(side, recipe.batch) for side in (images, labels))
    for pixels, classes in zip(*each, strict=True):
        slope = grad(loss)(here, pixels, classes)
        here = {name: value - recipe.learning_rate * slope[name] for name, value in here.items()}
        slopes.append(torch.cat([part.flatten() for part in slope.values()]))
    return torch.stack(slopes).sum(dim=0)


_DECAY_AT = (3 / 8, 5 / 8, 7 / 8)


@dataclass(frozen=True, slots=True)
class Search:
    """Gradient matching: min over x of 1 - cos(g(x), g*) + weight * TV(x) (Geiping et al. 2020).

    By Adam on the sign of the gradient, in the scale of the first learnt layer's input, every pixel
    kept in [0, 1]; several local steps are compared with the same steps on x, unrolled.

    iterations: of Adam. tv: weight of the total variation. restarts: of which the search's own
    loss keeps the best. spread: deviation of the noise around the public class mean where each
    restart begins.

    The learning rate and its decay are published. Of tv .01, .02 and .05, .02 was best in the mean
    over public images taken as private, barely above .01; the published 0.2 blurs digits.
    """

    iterations: int = 1000
    learning_rate: float = 0.1
    tv: float = 0.02
    restarts: int = 2
    spread: float = 0.2

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if not 0 <= value < math.inf or (value == 0 and each.name not in ("tv", "spread")):
                raise ConfigurationError(f"search.{each.name}", value, "use a number above 0")


QUICK = Search(iterations=40, restarts=1)


def search(
    public: Public, updates: Updates, labels: Tensor, recipe: Recipe, settings: Search, seed: int
) -> Tensor:
    """[T, records, 1, H, W] images for every update, the best of its restarts.

    labels: [T, records], in the order of the local steps.
    """
    public.pixels()
    model = network(public, updates.start)
    scaling = scaling_before(split_fixed(model)[0], tuple(public.proxies.shape[1:]))
    asked = labels.repeat_interleave(settings.restarts, dim=0)
    wanted = updates.gradients.float().repeat_interleave(settings.restarts, dim=0)
    black, white = (end.float().view(scaling.shape) for end in (scaling.black, scaling.white))
    noise = torch.Generator().manual_seed(seed)
    guess = black + class_means(public)[asked] * (white - black)
    given = guess + settings.spread * torch.randn(guess.shape, generator=noise)
    with on_device(model) as on:
        there = (each.to(on) for each in (asked, wanted, black, white))
        asked, wanted, black, white = there
        mismatch = Mismatch(model, asked, wanted, recipe, black, white, settings.tv)
        found, losses = (made.cpu() for made in _minimise(mismatch, given.to(on), settings))
    best = losses.view(len(updates), -1).argmin(dim=1)
    return found.view(len(updates), settings.restarts, *found.shape[1:])[
        torch.arange(len(updates)), best
    ]


def class_means(public: Public) -> Tensor:
    """[C, 1, H, W] public mean of each class; of all where labels are missing."""
    average = public.proxies.mean(dim=0)
    means = average.repeat(public.n_classes, *[1] * average.ndim)
    if public.labels is not None:
        for c in torch.unique(public.labels).tolist():
            means[c] = public.proxies[public.labels == c].mean(dim=0)
    return means


class Mismatch:
    """What is minimised: [A] values of A attempts given [A, records, 1, H, W]."""

    def __init__(
        self,
        model: nn.Module,
        labels: Tensor,
        wanted: Tensor,
        recipe: Recipe,
        black: Tensor,
        white: Tensor,
        tv: float,
    ) -> None:
        self._model, self._labels, self._wanted, self._recipe = model, labels, wanted, recipe
        self._tv, self.black, self.white = tv, black, white

    def images(self, given: Tensor) -> Tensor:
        """Images in the scale of pixels."""
        return (given - self.black) / (self.white - self.black)

    def __call__(self, given: Tensor) -> Tensor:
        """[A] losses."""
        steps = partial(unrolled, self._model, self._recipe)
        moved = vmap(steps)(self.images(given), self._labels)
        apart = 1 - cosine_similarity(moved, self._wanted, dim=1)
        return apart + self._tv * _total_variation(given)


def _minimise(mismatch: Mismatch, given: Tensor, settings: Search) -> tuple[Tensor, Tensor]:
    """Images [A, records, 1, H, W] and losses [A] after the search."""
    low = torch.minimum(mismatch.black, mismatch.white)
    high = torch.maximum(mismatch.black, mismatch.white)
    given = given.clamp(low, high).requires_grad_()
    optimiser = torch.optim.Adam([given], settings.learning_rate)
    milestones = [int(settings.iterations * share) for share in _DECAY_AT]
    decay = torch.optim.lr_scheduler.MultiStepLR(optimiser, milestones, gamma=0.1)
    for _ in range(settings.iterations):
        (slope,) = torch.autograd.grad(mismatch(given).sum(), given)
        given.grad = slope.sign()
        optimiser.step()
        decay.step()
        with torch.no_grad():
            given.clamp_(low, high)
    losses = mismatch(given).detach()
    return mismatch.images(given.detach()).clamp(0, 1), losses


def _total_variation(images: Tensor) -> Tensor:
    """[A] mean absolute difference of neighbours, over the images of an attempt [A, n, 1, H, W]."""
    down = (images[..., 1:, :] - images[..., :-1, :]).abs().flatten(1).mean(dim=1)
    across = (images[..., 1:] - images[..., :-1]).abs().flatten(1).mean(dim=1)
    return down + across
