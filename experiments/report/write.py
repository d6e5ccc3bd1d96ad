"""Everything a comparison leaves behind, in one call."""

from pathlib import Path

from experiments.report import html, plots
from experiments.report.images import IMAGES_FILE, Images, save_images
from experiments.report.results import Results, save


def write_report(results: Results, images: Images, folder: Path) -> Path:
    """Write results.json, reconstructions.npz, the figures and report.html; the page's path.

    The numbers come first: a failure later never costs a finished run.
    """
    save(results, folder)
    if images:
        save_images(images, folder)
    else:
        (folder / IMAGES_FILE).unlink(missing_ok=True)  # one of an earlier run
    plots.save_all(results, folder)
    return html.save(results, folder)
