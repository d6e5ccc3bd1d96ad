"""Sites that take part with rows of a table, over a courier in this process."""

from contextlib import ExitStack, closing
from types import SimpleNamespace

import pytest
from sklearn.datasets import load_breast_cancer

from secure_fd.cli import main
from secure_fd.data.draft import drafted
from secure_fd.deployment import keys
from secure_fd.deployment.budget import default_ledger
from secure_fd.deployment.enrol import InitCommand
from secure_fd.deployment.loop import Rounds
from secure_fd.deployment.parties import agreed_proxies, encoder_in, parts_of, records_in
from tests.drivers.flower_federation import Courier, Enrolled, image_folders
from tests.refusals import refused

PUBLIC = 'columns = "columns.toml"\npublic = "public.csv"\nlabel = "outcome"\n'
PRIVATE = f'{PUBLIC}rows = "patients.csv"\nperson = "patient"\n'
NOISY = {"size": None, "unit": "record", "epsilon": 4.0, "rounds": 0}


class Tables(Enrolled):
    """Three sites of 128 patients each, two of whom have two equal rows."""

    def __init__(self, folder):
        self.folder, self.proxies = folder, folder / "server" / "table.toml"
        rows = load_breast_cancer(as_frame=True).frame.sample(frac=1, random_state=0)
        rows["outcome"] = rows.pop("target").map({0: "malign", 1: "benign"})
        rows["patient"] = range(len(rows))
        self.test = rows[:85]
        for k, site in enumerate(("server", *"abc")):
            place = folder / site
            place.mkdir(parents=True)
            rows[85:185].to_csv(place / "public.csv", index=False)
            columns, _, _ = drafted(place / "public.csv", "outcome").partition('["patient"]')
            (place / "columns.toml").write_text(columns)
            (place / "table.toml").write_text(PRIVATE if k else PUBLIC)
            if k:
                own = rows[184 + k :: 3]
                own.iloc[[*range(len(own)), 0, 1]].to_csv(place / "patients.csv", index=False)
                InitCommand(data=self.records(site), name=site)()

    def records(self, site):
        return self.folder / site / "table.toml"


@pytest.fixture(scope="module")
def sites(tmp_path_factory):
    made = Tables(tmp_path_factory.mktemp("tables"))
    made.enrol("roster", **NOISY)
    return made


def test_three_sites_train_on_their_rows_to_the_end(sites, tmp_path, capsys):
    roster, table = sites.roster("roster"), sites.proxies
    assert roster.shape == (30, 1, 1)
    assert roster.records == (115, 115, 115)
    with ExitStack() as stack:
        opened = (closing(keys.open_state(sites.home(name))) for name in ("server", *"abc"))
        server, *files = map(stack.enter_context, opened)
        made = [sites.site(roster, name, file) for name, file in zip("abc", files, strict=True)]
        world = SimpleNamespace(sites=dict(enumerate(made)))
        parts = parts_of(roster, agreed_proxies(table, roster))
        played = list(Rounds(roster, parts, Courier(world), server).run(2))
        assert [set(one.survivors) for one in played] == [{(0, 1, 2)}] * 2
        assert len({site.digest for site in made}) == 1
        assert 0 < made[0].role.guarantee().epsilon <= 4
        made[0].export(encoder_in(table))
    assert default_ledger(sites.records("a")) == sites.folder / "a" / "patients.csv.ledger"
    assert (sites.folder / "a" / "patients.csv.ledger").exists()
    sites.test.drop(columns="outcome").to_csv(tmp_path / "new.csv", index=False)
    capsys.readouterr()
    assert main(["predict", str(sites.home("a") / "model"), str(tmp_path / "new.csv")]) == 0
    found = [line.split("\t")[1] for line in capsys.readouterr().out.splitlines()]
    assert (sites.test["outcome"] == found).mean() > 0.85
    (tmp_path / "odd.csv").write_text("mean radius\n3\n")
    assert main(["predict", str(sites.home("a") / "model"), str(tmp_path / "odd.csv")]) == 2
    assert capsys.readouterr().err.startswith("error: rows: ")


MISTAKES = [
    ("table.toml", "label", "class", "table"),
    ("table.toml", '= "outcome"', "= ", "table"),
    ("table.toml", "patients.csv", "nowhere.csv", "table"),
    ("table.toml", 'rows = "patients.csv"', "", "rows"),
    ("table.toml", '"patients.csv"', "3", "rows"),
    ("table.toml", '"patient"', '"outcome"', "label"),
    ("table.toml", 'person = "patient"', "", "data"),  # rows that are there twice are two records
    ("columns.toml", "low = ", "low = -", "columns"),  # of no public row
    ("columns.toml", '"benign", "malign"', '"malign", "benign"', "columns"),
    ("public.csv", ",0.", ",9.", "proxies"),
]
"""A file of a site, a text and what stands in its place, and the field that is refused."""


@pytest.mark.parametrize(("file", "old", "new", "field"), MISTAKES)
def test_a_site_with_another_table_than_agreed_is_refused(sites, tmp_path, file, old, new, field):
    for name in ("columns.toml", "patients.csv", "public.csv", "table.toml"):
        text = (sites.folder / "a" / name).read_text()
        (tmp_path / name).write_text(text.replace(old, new, 1) if name == file else text)
    with refused(field):
        records_in(tmp_path / "table.toml", sites.roster("roster"), 0)


def test_images_and_a_table_are_not_mixed(sites, tmp_path):
    roster, [folder, *_] = sites.roster("roster"), image_folders(tmp_path, "abc")
    with refused("data"):
        records_in(folder, roster, 0)
    with refused("proxies"):
        agreed_proxies(tmp_path / "proxies", roster)
    classes, proxies = ("malign", "benign"), tmp_path / "proxies"
    wrong = {"size": 28, "channels": 1, "classes": classes, "image_set": "digits"}
    for name, value in (wrong | {"proxies": proxies}).items():
        with refused(name if name in ("size", "channels", "classes") else "size"):
            sites.enrol("refused", **NOISY | {"home": tmp_path / "server", name: value})
    assert not (tmp_path / "server").exists()
    with refused("classes"):
        InitCommand(sites.records("a"), "a", tmp_path / "home", classes=("benign",))()
