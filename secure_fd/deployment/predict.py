"""`secure-fd predict`: the predictions of a site's model for images, or for rows of a table."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import tyro
from torch import Tensor

from secure_fd.cli import exit_status
from secure_fd.data.columns import Encoder
from secure_fd.data.own_images import image_files, read_picture
from secure_fd.data.tables import encoded
from secure_fd.deployment.model import CARD, CARD_SCHEMA, PROGRAM
from secure_fd.errors import ConfigurationError

_MOST_BYTES = 1 << 24


@dataclass(frozen=True, slots=True)
class PredictCommand:
    """Print the class and its probability for each image, or each row."""

    model: tyro.conf.Positional[Path]
    """The folder model that a site ended with; loading it may run code, so trust its source."""
    images: tyro.conf.Positional[tuple[Path, ...]]
    """PNG, JPEG or BMP images of any size, or folders of them; CSV or Parquet files of rows for the
    model of a table."""

    def __call__(self) -> int:
        """Print a line a record, and return the exit status.

        Raises ConfigurationError for a folder without a model, and for a file that is no image, or
        no table with the model's columns.
        """
        card = card_of(self.model)
        records = _rows if "encoder" in card else _images
        found, program = records(card, self.images), program_of(self.model)
        for name, record in found:
            probabilities = program(record)[0]
            best = int(probabilities.argmax())
            print(f"{name}\t{card['classes'][best]}\t{float(probabilities[best]):.3f}")
        return 0


def _images(card: Mapping[str, Any], paths: Sequence[Path]) -> Iterator[tuple[str, Tensor]]:
    for path in files_of(paths):
        yield str(path), read_picture(path, card["channels"])[None].float() / 255


def _rows(card: Mapping[str, Any], paths: Sequence[Path]) -> Iterator[tuple[str, Tensor]]:
    """Yield rows by the file's name and their number in it, from 1 on."""
    encoder = Encoder.restored(card["encoder"])
    for path in paths:
        rows = (row for part in encoded(encoder, path) for row in torch.from_numpy(part))
        for number, row in enumerate(rows, 1):
            yield f"{path}:{number}", row[None, :, None, None]


def card_of(model: Path) -> dict[str, Any]:
    """Read the card of a model; ConfigurationError where there is none."""
    path = model / CARD
    try:
        card = json.loads(path.read_bytes()[:_MOST_BYTES])
        known = isinstance(card, dict) and card["schema"] == CARD_SCHEMA
    except (OSError, ValueError, KeyError):
        known = False
    if not known:
        allowed = f"use a folder with {PROGRAM} and {CARD}, as a site ends with"
        raise ConfigurationError("model", str(model), allowed)
    return dict(card)


def program_of(model: Path) -> Any:  # noqa: ANN401 - a graph module of torch
    """Load the program; ConfigurationError for a file that is none."""
    try:
        return torch.export.load(model / PROGRAM).module()
    except Exception as error:
        allowed = f"its {PROGRAM} cannot be read ({type(error).__name__}): copy the folder again"
        raise ConfigurationError("model", str(model), allowed) from error


def files_of(images: Sequence[Path]) -> list[Path]:
    """Return image files, those of folders in the order of their names."""
    found = [file for path in images for file in (image_files(path) if path.is_dir() else [path])]
    if not found:
        raise ConfigurationError("images", [str(path) for path in images], "they hold no image")
    return found


def main(arguments: Sequence[str], prog: str) -> int:
    """Run the command; returns the exit status."""

    def work() -> int:
        return tyro.cli(PredictCommand, args=list(arguments), prog=prog)()

    return exit_status(work, interrupted="nothing is kept")
