"""The suite's results, table, figures and page, on invented findings."""

import dataclasses
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from scipy.stats import ttest_rel
from suite_sample import (
    ABOUT,
    FEW,
    MISSING,
    ROWS,
    findings,
    images,
    inversion,
    membership,
    sample,
    scene,
)

from attacks.base import AttackResult
from attacks.view import THREATS, Capability
from experiments import suite_page as text
from experiments.results import AttackFigure
from experiments.scenes import SCENES, Findings
from experiments.suite import (
    RESULTS_FILE,
    Measured,
    SceneResults,
    SuiteResults,
    aggregate,
    load_suite,
    named_strips,
    pictures,
    save_suite,
)
from experiments.suite_page import drawings, literal_and_excess, print_table, render, write_report
from experiments.tables import MINUS
from secure_fd.errors import ConfigurationError

SEEDS = (10, 11, 12)
HOSTILE = "<script>alert('x')</script>\"><img src=x onerror=y>"
VOID = {"meta", "img", "link", "br", "hr", "input"}


class Page(HTMLParser):
    """All tags with attributes, checking that they nest."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A written report."""
    made = tmp_path_factory.mktemp("suite")
    write_report(sample(), images(), made)
    return made


def one(found: SceneResults, row: str, attack: str) -> Measured:
    measured = found.figure(row, attack)
    assert measured is not None
    return measured


def printed(results: SuiteResults, width: int = 100) -> str:
    out = io.StringIO()
    print_table(results, Console(file=out, width=width, highlight=False))
    return out.getvalue()


def test_figures_over_seeds_are_means_with_paired_intervals() -> None:
    found = one(scene(), "fedavg", "lira")
    every = [membership(2.0, seed, "lira") for seed in SEEDS]
    figures, controls = [r.figure for r in every], [r.control for r in every]
    assert found.figure == pytest.approx(np.mean(figures))
    assert found.control == pytest.approx(np.mean(controls))
    expected = ttest_rel(figures, controls).confidence_interval(0.95)
    assert found.difference_interval == pytest.approx((expected.low, expected.high))
    assert [of.seed for of in found.seeds] == list(SEEDS)
    assert found.verdict == "above the control"
    assert one(scene(), "hard", "inversion").verdict == "at the control"


def test_a_figure_below_its_control_is_told_apart_too() -> None:
    given = {("hard", seed): {"label-only": membership(-1.5, seed)} for seed in SEEDS}
    found = aggregate("s", "S", ABOUT, ROWS, given)
    assert one(found, "hard", "label-only").verdict == "below the control"
    assert "leaking less than the control in the one row measured" in text.findings(found)[0]


def test_one_seed_is_judged_by_its_interval_over_records() -> None:
    found = one(scene((10,)), "fedavg", "label-only")
    alone = membership(1.0, 10)
    assert found.interval == alone.interval
    assert found.difference_interval is None
    assert found.verdict == "above the control"
    close = dataclasses.replace(alone, control=alone.interval[0] - 0.001)
    given = {("fedavg", 10): {"label-only": close}}
    at = one(aggregate("s", "S", ABOUT, ROWS, given), "fedavg", "label-only")
    assert at.verdict == "at the control"  # an interval that just misses it is no proof


def test_one_seed_and_a_p_value_must_agree() -> None:
    unsure = inversion(2.0, 10)
    unsure = dataclasses.replace(unsure, details={**unsure.details, "delta_p_value": 0.3})
    given = {("fedavg", 10): {"inversion": unsure}}
    found = one(aggregate("s", "S", ABOUT, ROWS, given), "fedavg", "inversion")
    assert found.verdict == "at the control"
    # The p-value is that of Δ: a raw PSNR far below its control is below it.
    raw = dataclasses.replace(unsure, figure_name="PSNR", control=15.0)
    given = {("fedavg", 10): {"inversion": raw}}
    literal = one(aggregate("s", "S", ABOUT, ROWS, given), "fedavg", "inversion")
    assert literal.verdict == "below the control"


def test_false_alarms_over_seeds_are_as_many_as_stated() -> None:
    rng = np.random.default_rng(3)
    alarms = 0
    for _ in range(300):
        noise = rng.normal(0.5, 0.02, (3, 2))
        given = {
            ("hard", seed): {
                "inversion": dataclasses.replace(
                    inversion(0.0, seed), figure=figure, control=control, images=None
                )
            }
            for seed, (figure, control) in zip(SEEDS, noise, strict=True)
        }
        found = one(aggregate("s", "S", ABOUT, ROWS, given), "hard", "inversion")
        alarms += found.verdict != "at the control"
    # P[Bin(300, .05) > 29] < 1e-3; deciding by the normal quantile would give about 57.
    assert alarms <= 29


def test_sentences_of_inapplicable_attacks_are_kept_word_for_word() -> None:
    assert scene().cells["masked"]["lira"] == MISSING
    with pytest.raises(ConfigurationError, match="not applicable: "):
        aggregate("s", "S", ABOUT, ROWS, {("hard", 10): {"lira": "failed"}})


def test_seeds_that_lack_an_attack_leave_the_others_and_are_counted() -> None:
    given = findings(SEEDS)
    given["fedavg", 11] = {**given["fedavg", 11], "lira": MISSING}
    found = aggregate("membership", "Membership", ABOUT, ROWS, given)
    assert [of.seed for of in one(found, "fedavg", "lira").seeds] == [10, 12]
    page = render(dataclasses.replace(sample(), scenes=(found,)), {})
    assert "2 of 3 seeds" in page


def test_rows_without_findings_were_not_run() -> None:
    given = {key: found for key, found in findings(SEEDS).items() if key[0] != "masked"}
    found = aggregate("membership", "Membership", ABOUT, ROWS, given)
    assert found.cells["masked"] == {}
    assert text.absence(found, "masked", "lira") == "not run"
    results = dataclasses.replace(sample(), scenes=(found,))
    assert "not run" in printed(results)
    assert all("not run" in d.alt for d in drawings(found, {}) if d.name.startswith("forest"))


def test_findings_of_an_unknown_row_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="use a row of fedavg, hard, masked"):
        aggregate("s", "S", ABOUT, ROWS, {("dpsgd", 10): {}})


def test_titles_that_differ_between_rows_lose_their_brackets() -> None:
    assert scene().attacks["inversion"] == "Model inversion"
    assert scene().attacks["lira"] == "Membership by lira"
    only = {("masked", 10): {"lira": MISSING}}
    assert aggregate("s", "S", ABOUT, ROWS, only).attacks == {"lira": "lira"}


def test_further_figures_over_seeds_and_of_one() -> None:
    name = "tpr_at_0.01_fpr"
    values = [membership(2.0, seed).details[name] for seed in SEEDS]
    several = one(scene(), "fedavg", "lira").detail(name)
    assert several is not None
    assert several.value == pytest.approx(np.mean(values))
    alone = one(scene((10,)), "fedavg", "lira").detail(name)
    details = membership(2.0, 10).details
    assert alone is not None
    assert alone.interval == (details[f"{name}_low"], details[f"{name}_high"])
    few = {("hard", s): {"lira": membership(1.0, s, "lira", n=50)} for s in SEEDS}
    unresolved = one(aggregate("s", "S", ABOUT, ROWS, few), "hard", "lira")
    assert unresolved.detail(name) is None
    assert FEW in unresolved.caveats


def test_an_attacks_figure_keeps_every_field() -> None:
    result = membership(1.0, 10)
    figure = AttackFigure.of(result)
    for name in {f.name for f in dataclasses.fields(AttackFigure)} - {"roc", "caveats"}:
        assert getattr(figure, name) == getattr(result, name)
    assert figure.caveats == list(result.caveats)
    assert figure.roc is not None
    assert result.roc is not None
    assert figure.roc["tpr"] == result.roc.tpr.tolist()


@pytest.mark.parametrize("seeds", [(10,), SEEDS])
def test_results_come_back_from_their_file(tmp_path: Path, seeds: tuple[int, ...]) -> None:
    save_suite(sample(seeds), tmp_path)
    assert load_suite(tmp_path) == sample(seeds)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("schema", "secure-fd/attack-suite/0", "this version reads"),
        ("scenes", [], "one or more, each once"),
        ("seeds", [], "one or more"),
        ("seconds", None, "finite number"),
        ("more", 1, "unknown"),
    ],
)
def test_files_that_do_not_fit_are_refused(
    tmp_path: Path, field: str, value: object, message: str
) -> None:
    path = save_suite(sample((10,)), tmp_path)
    content = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**content, field: value}), encoding="utf-8")
    with pytest.raises(ConfigurationError, match=message):
        load_suite(tmp_path)


def test_verdicts_are_words_of_the_schema() -> None:
    found = one(scene(), "fedavg", "lira")
    with pytest.raises(ConfigurationError, match="above the control"):
        dataclasses.replace(found, verdict="fine")
    with pytest.raises(ConfigurationError, match="one or more"):
        dataclasses.replace(found, seeds=())


@pytest.mark.parametrize("width", [60, 100, 160])
def test_table_fits_and_says_everything_once(width: int) -> None:
    shown = printed(sample(), width)
    assert max(map(len, shown.splitlines())) <= width
    words = " ".join(shown.split())
    assert "[interval] · control" in words
    assert "0.918 [0.898, 0.939]* · 0.499" in words
    assert words.count("missing clients' uploads in clear") == 2  # of lira, and of inversion
    assert words.count(FEW) == 1
    assert "caveat: raw PSNR (A) rewards blur [inversion]" in words
    assert "Nothing was run." in words
    assert "about 0.4 of the 7" in words


def test_caveats_name_rows_where_not_all_carry_them() -> None:
    given = findings((10,))
    lone = dataclasses.replace(membership(0.0, 10), caveats=("constant predictor",))
    given["hard", 10] = {**given["hard", 10], "label-only": lone}
    known = text.caveats(aggregate("s", "S", ABOUT, ROWS, given))
    assert known["constant predictor"] == "label-only (Selective-FD hard)"
    assert known[FEW] == "label-only (FedAvg, Selective-FD hard + masks), lira"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0614, "0.061"),
        (-0.25, f"{MINUS}0.250"),
        (-0.0001, "0.000"),
        (0.9996, "1.00"),
        (46.54, "46.5"),
    ],
)
def test_figures_keep_three_digits(value: float, shown: str) -> None:
    assert text.precise(value) == shown


def test_every_figure_is_drawn_and_told_in_words() -> None:
    made = {d.name: d for d in drawings(scene(), images()["membership"])}
    assert set(made) == {
        "forest-label-only", "roc-label-only", "forest-lira", "roc-lira", "forest-inversion",
        "psnr-inversion", "images-inversion", "low-fpr",
    }  # fmt: skip
    assert all(len(d.alt) > 20 and d.caption and d.heading for d in made.values())
    assert MISSING in made["forest-lira"].alt


def test_nothing_measured_draws_nothing() -> None:
    given = {("masked", seed): {"lira": MISSING} for seed in SEEDS}
    assert list(drawings(aggregate("s", "S", ABOUT, ROWS, given), {})) == []


def test_curves_are_drawn_from_the_lowest_rate_resolved() -> None:
    roc = next(d for d in drawings(scene(), {}) if d.name == "roc-lira")
    low, high = roc.figure.axes[0].get_xlim()
    assert low == pytest.approx(0.005, rel=0.13)  # 200 non-members; a grid of 20 a decade
    assert high == 1.0


def test_literal_psnr_stands_beside_its_excess_with_shared_controls_only() -> None:
    alone = next(literal_and_excess(scene(), "inversion")).alt
    assert "FedAvg: A 15.0 dB, Δ 1.98" in alone
    assert f"control: public class mean: A 15.3 dB, Δ {MINUS}0.100" in alone
    given = findings((10,))
    route = dataclasses.replace(
        inversion(0.0, 10), details={**inversion(0.0, 10).details, "pool: A": 9.0, "pool: delta": 1}
    )
    given["hard", 10] = {"inversion": route}
    routed = aggregate("s", "S", ABOUT, ROWS, given)
    assert "pool" not in next(literal_and_excess(routed, "inversion")).alt


def test_pictures_are_of_the_lowest_seed_and_name_what_is_shared() -> None:
    given = findings(SEEDS)
    first = given["fedavg", 10]["inversion"]
    assert isinstance(first, AttackResult)
    made = pictures(ROWS, given)["inversion"]
    assert made["fedavg"] is first.images
    labels = [label for label, _ in named_strips(ROWS, made)]
    assert labels == ["originals", "FedAvg", "Selective-FD hard", "black", "public class mean"]
    own = {**made, "hard": {**made["hard"], "black": 1 - made["hard"]["black"]}}
    assert "FedAvg: black" in [label for label, _ in named_strips(ROWS, own)]


def test_pictures_of_other_shapes_are_refused() -> None:
    odd = dataclasses.replace(inversion(0.0, 10), images={"attack": np.zeros((3, 1, 14, 14))})
    with pytest.raises(ConfigurationError, match="finite images"):
        pictures(ROWS, {("hard", 10): {"inversion": odd}})


def test_report_leaves_numbers_images_and_figures(folder: Path) -> None:
    assert load_suite(folder) == sample()
    assert {p.name for p in folder.iterdir()} == {RESULTS_FILE, "report.html", "plots", "images"}
    with np.load(folder / "images" / "membership.npz", allow_pickle=False) as kept:
        assert "inversion/fedavg/attack" in kept.files
    assert len(list((folder / "plots").glob("membership-*.png"))) == 8


def test_a_later_report_leaves_nothing_of_an_earlier_one(tmp_path: Path) -> None:
    results = dataclasses.replace(sample((10,)), scenes=sample((10,)).scenes[1:])
    for stale in (tmp_path / "plots" / "old.png", tmp_path / "images" / "updates.npz"):
        stale.parent.mkdir()
        stale.write_bytes(b"")
    write_report(results, {}, tmp_path)
    assert not list((tmp_path / "plots").iterdir())
    assert not list((tmp_path / "images").iterdir())


def test_page_has_every_section_and_fetches_nothing(folder: Path) -> None:
    page = (folder / "report.html").read_text(encoding="utf-8")
    parsed = Page(page)
    assert parsed.open == []
    for heading in ("reading", "threats", "scene-membership", "scene-updates", "limits"):
        assert f'<h2 id="{heading}">' in page
    assert "python experiments/attack_suite.py --scenes all" in page
    assert all(sentence[:60] in page for sentence in text.LIMITS)
    assert page.count("not applicable: missing clients&#39; uploads in clear") >= 2
    assert len(parsed.all("img")) == 8
    for _, attributes in parsed.tags:
        for name in ("src", "href", "srcset", "action", "data", "poster"):
            value = attributes.get(name)
            assert value is None or value.startswith(("data:image/png;base64,", "#"))
    style = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)[0]
    assert "url(" not in style
    assert "&#" not in style
    assert "://" not in page
    assert not parsed.all("script")
    assert any("default-src 'none'" in (m.get("content") or "") for m in parsed.all("meta"))


def test_page_is_accessible(folder: Path) -> None:
    parsed = Page((folder / "report.html").read_text(encoding="utf-8"))
    assert parsed.all("html") == [{"lang": "en"}]
    assert all(len(image.get("alt") or "") > 20 for image in parsed.all("img"))
    assert all(header.get("scope") in {"row", "col"} for header in parsed.all("th"))
    ids = [attributes["id"] for _, attributes in parsed.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = {(link["href"] or "").removeprefix("#") for link in parsed.all("a")}
    targets |= {str(a["aria-labelledby"]) for _, a in parsed.tags if "aria-labelledby" in a}
    assert targets <= set(ids)


def test_page_shows_what_each_attacker_can_have() -> None:
    page = render(sample((10,)), {})
    table = page[page.index('id="threats"') : page.index('id="scene-membership"')]
    for capability in Capability:
        line = table[table.index(capability.value.replace("'", "&#39;")) :].split("</tr>")[0]
        cells = re.findall(r"<td>(?:<span[^>]*>)?(yes|no)", line)
        assert cells == ["yes" if capability in t.most else "no" for t in THREATS]


def test_page_tells_how_one_seed_was_judged() -> None:
    assert "with one seed" in render(sample((10,)), {})
    assert "over 3 seeds" in render(sample(), {})


def test_everything_on_the_page_is_escaped() -> None:
    evil = dataclasses.replace(
        membership(1.0, 10),
        title=HOSTILE,
        figure_name=HOSTILE,
        control_name=HOSTILE,
        unit=HOSTILE,
        caveats=(HOSTILE,),
        details={HOSTILE: 1.0},
    )
    given = {
        ("a", 10): {HOSTILE: evil, "other": f"not applicable: {HOSTILE}"},
    }
    found = aggregate("s", HOSTILE, HOSTILE, {"a": HOSTILE}, given)
    results = dataclasses.replace(
        sample((10,)), scenes=(found,), command=[HOSTILE], settings={HOSTILE: HOSTILE}
    )
    parsed = Page(page := render(results, {}))
    assert "<script" not in page
    assert not parsed.all("script")
    assert not parsed.all("img")
    assert not any("onerror" in attributes for _, attributes in parsed.tags)
    assert page.count("&lt;script&gt;") >= 15


def test_an_error_below_its_control_is_a_leak() -> None:
    def error(value: float) -> AttackResult:
        result = membership(0.0, 1)
        return dataclasses.replace(
            result, figure_name="TV error (0: known)", figure=value, control=0.9, roc=None
        )

    given = {("hard", s): {"participation": error(0.2 + s / 1000)} for s in SEEDS}
    found = aggregate("s", "S", ABOUT, ROWS, given)
    assert one(found, "hard", "participation").verdict == "below the control"
    assert "leaking more than the control in the one row measured" in text.findings(found)[0]


def test_a_reason_not_to_run_is_told_in_the_words_of_the_scene() -> None:
    given = {
        ("fedavg", 10): {"label-only": membership(0.0, 10)},
        ("hard", 10): {"label-only": "not run: the other row answers for it"},
    }
    found = aggregate("s", "S", ABOUT, ROWS, given)
    assert text.blank(found, "hard", "label-only") == "not run"
    hard = [found.rows["hard"]]
    assert text.without_figure(found, "label-only")["the other row answers for it"] == hard
    with pytest.raises(ConfigurationError, match="start it with"):
        aggregate("s", "S", ABOUT, ROWS, {("hard", 10): {"label-only": "because"}})


def test_a_row_that_some_seeds_lack_is_not_told_apart() -> None:
    given: dict[tuple[str, int], Findings] = {
        ("hard", 10): {"label-only": membership(3.0, 10)},
        ("hard", 11): {"label-only": "not applicable: missing an image"},
    }
    found = one(aggregate("s", "S", ABOUT, ROWS, given), "hard", "label-only")
    assert found.verdict == "at the control"
    assert any("other seeds gave no figure" in words for words in found.caveats)


def test_the_committed_results_are_read_and_shown() -> None:
    kept = load_suite(Path(__file__).parents[2] / "docs" / "results")
    assert len(kept.scenes) == len(SCENES)
    assert "In short" in printed(kept)
