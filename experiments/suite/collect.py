"""From finished rows to the results and pictures that are saved and shown."""

from collections.abc import Mapping
from dataclasses import asdict

from experiments.provenance import PRIVACY_LIBRARIES, created_now, machine, versions
from experiments.suite.driver import cells
from experiments.suite.pictures import Pictures, pictures
from experiments.suite.results import SCHEMA, SceneResults, SuiteResults, aggregate
from experiments.suite.scene import Findings
from experiments.suite.scenes import load
from experiments.suite.settings import Plan
from experiments.suite.store import Store
from secure_fd.training import default_device


def results(
    plan: Plan, store: Store, command: list[str]
) -> tuple[SuiteResults, Mapping[str, Pictures]]:
    """Everything that the store holds of a plan, over seeds; and the images, by scene."""
    done = [found for cell in cells(plan) if (found := store.find(cell)) is not None]
    scenes: list[SceneResults] = []
    images: dict[str, Pictures] = {}
    for name in plan.scenes:
        scene = load(name)
        rows = scene.rows(plan.job)
        findings: dict[tuple[str, int], Findings] = {
            (one.cell.row, one.cell.seed): one.findings for one in done if one.cell.scene == name
        }
        scenes.append(aggregate(name, scene.title, scene.about, rows, findings))
        images[name] = pictures(rows, findings)
    made = SuiteResults(
        schema=SCHEMA,
        created=created_now(),
        command=command,
        settings=_settings(plan, store),
        seeds=list(plan.seeds),
        versions=versions(*PRIVACY_LIBRARIES),
        machine={**machine(), "device": str(default_device())},
        scenes=tuple(scenes),
        seconds=sum(one.seconds for one in done),
    )
    return made, images


def _settings(plan: Plan, store: Store) -> dict[str, object]:
    """Every setting that a figure may depend on; paths stay on the machine that has them."""
    job = {name: value for name, value in asdict(plan.job).items() if name != "data_dir"}
    return {**job, "scenes": list(plan.scenes), "code": store.version}
