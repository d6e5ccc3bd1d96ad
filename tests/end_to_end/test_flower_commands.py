"""`secure-fd site` and `secure-fd join` as an operator meets them: one sentence, an exit status."""

import pytest

from secure_fd.deployment.roster import read
from tests.flower_federation import image_folders
from tests.programs import ended


def _run(*arguments):
    return ended("-m", "secure_fd", *arguments)


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    return image_folders(tmp_path_factory.mktemp("site"), "a")[0]


def test_keys_are_made_once_beside_the_records(records):
    made = _run("site", "init", "--data", str(records), "--name", "north")
    card = records.parent / "home" / "north.toml"
    assert (made.returncode, made.stderr) == (0, "")
    assert "records = 18" in card.read_text()
    state = (records.parent / "home" / "state").read_bytes()
    again = _run("site", "init", "--data", str(records), "--name", "north")
    assert again.returncode == 2
    assert again.stderr.startswith("error: path: ")
    assert again.stderr.count("\n") == 1
    assert (records.parent / "home" / "state").read_bytes() == state


@pytest.mark.parametrize("typed", [True, False])
def test_a_roster_that_is_missing_is_named(records, tmp_path, typed):
    """Whether its name is typed or in a file of settings."""
    missing, path = tmp_path / "none.toml", tmp_path / "any.toml"
    for command, data in (("join", {"data": str(records), "patience": "5"}), ("serve", {})):
        given = {"roster": str(missing)} | data
        path.write_text("".join(f'{name} = "{value}"\n' for name, value in given.items()))
        options = [each for name, value in given.items() for each in (f"--{name}", value)]
        ended = _run(command, *(options if typed else ("--config", str(path))))
        assert ended.returncode == 2
        assert ended.stderr.startswith("error: ")
        assert "none.toml" in ended.stderr
        assert ended.stderr.count("\n") == 1


def test_a_roster_is_made_from_a_file_with_the_names_of_the_recipe(tmp_path):
    """What is typed wins; a name that is no option is refused and makes nothing."""
    for records in image_folders(tmp_path, "abc"):
        _run("site", "init", "--data", str(records), "--name", records.parent.name)
    terms = tmp_path / "terms.toml"
    settings = [
        f'home = "{tmp_path}/server"',
        f"cards = {[str(tmp_path / site / 'home' / f'{site}.toml') for site in 'abc']}",
        f'proxies = "{tmp_path}/proxies"',
        'classes = ["cat", "dog"]',
        'address = "127.0.0.1:9443"',
        f'out = "{tmp_path}/roster.toml"',
        *("size = 16", "rounds = 7", 'method = "fedmd"'),
    ]
    terms.write_text("\n".join([*settings, "epsilons = 1"]))
    command = ("site", "roster", "--config", str(terms))
    assert _run(*command).returncode == 2
    assert not (tmp_path / "roster.toml").exists()
    terms.write_text("\n".join(settings))
    made = _run(*command, "--rounds", "3")
    assert made.returncode == 0, made.stderr
    found = read(tmp_path / "roster.toml")
    assert (found.terms.rounds, found.terms.method, found.classes) == (3, "fedmd", ("cat", "dog"))
