"""Three to ten hospitals on this machine: records, keys, TLS and the roster that all of them hold.

    python examples/hospitals/prepare.py /tmp/hospitals

The records are scikit-learn's digits, or an image set of $SECURE_FD_DATA, each hospital with its
own share, as folders of images; in earnest every site runs `secure-fd site init` on its own
machine, with its own records.
"""

import argparse
import os
import sys
from pathlib import Path

import numpy as np
from PIL import Image

from secure_fd import federate, load, parse_split
from secure_fd.data.federated import FederatedData
from secure_fd.data.image_sets import Sizes
from secure_fd.data.images import Images, proxy_pixels
from secure_fd.deployment.commands import main as secure_fd

SITES = (
    *("north", "south", "west", "east", "harbour"),
    *("hill", "lake", "forest", "river", "castle"),
)


def write(images: Images, folder: Path, *, by_class: bool) -> None:
    """Images as files; by_class: in one folder a class."""
    pixels = proxy_pixels(images.pixels)[:, 0]
    for index, (pixel, label) in enumerate(zip(pixels, images.labels.tolist(), strict=True)):
        place = folder / str(label) if by_class else folder
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.asarray(pixel)).save(place / f"{index:05d}.png")


def prepare(
    folder: Path, data: FederatedData, sites: tuple[str, ...], address: str, more: tuple[str, ...]
) -> None:
    """Records, keys and roster below a new folder. more: options of the roster."""
    write(data.proxies, folder / "proxies", by_class=False)
    write(data.test, folder / "test", by_class=True)
    for site, client in zip(sites, data.clients, strict=True):
        records = folder / site / "records"
        write(client.train, records, by_class=True)
        home = folder / site / "home"
        step = ["init", "--home", str(home), "--data", str(records), "--name", site]
        step += ["--classes", *(str(label) for label in range(data.n_classes))]
        if secure_fd(step, "secure-fd site"):
            sys.exit(2)
    cards = [str(folder / site / "home" / f"{site}.toml") for site in sites]
    step = [
        *("roster", "--home", str(folder / "server"), "--cards", *cards),
        *("--proxies", str(folder / "proxies")),
        *("--image-set", data.name, "--size", str(data.proxies.pixels.shape[-1])),
        *("--address", address, "--out", str(folder / "roster.toml"), *more),
    ]
    if secure_fd(step, "secure-fd site"):
        sys.exit(2)


def main() -> None:
    """Prepare the folder that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--address", default="127.0.0.1:9443", help="of the server, HOST:PORT")
    parser.add_argument("--small", action="store_true", help="few records, for a test")
    parser.add_argument("--sites", type=int, default=3, choices=range(3, len(SITES) + 1))
    parser.add_argument("--data", default="digits", help="an image set of the package")
    parser.add_argument("--split", default="iid", help="of the records over the sites")
    known, more = parser.parse_known_args()
    sizes = Sizes(20, 20, 4, local=100) if known.small else Sizes(40, 30, 5)
    kept = os.environ.get("SECURE_FD_DATA")
    source = load(known.data, Path(kept) if kept else None)
    split, given = parse_split(known.split), sizes if known.data == "digits" else None
    data = federate(source, split, known.sites, seed=0, sizes=given)
    prepare(known.folder, data, SITES[: known.sites], known.address, tuple(more))


if __name__ == "__main__":
    main()
