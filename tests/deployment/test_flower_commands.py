"""`secure-fd site`, `serve` and `join` as an operator meets them: one sentence, an exit status."""

import pytest

from secure_fd.cli import main
from secure_fd.deployment.roster import read
from tests.drivers.flower_federation import image_folders
from tests.programs import ended

pytest.importorskip("flwr", reason='needs the extra: pip install "secure-fd[flower]"')


def _cards(folder):
    for records in image_folders(folder, "abc"):
        assert main(["site", "init", "--data", str(records), "--name", records.parent.name]) == 0
        yield str(records.parent / "home" / f"{records.parent.name}.toml")


def test_keys_are_made_once_beside_the_records(tmp_path):
    """In processes of their own, as all of it is in real use."""
    [records] = image_folders(tmp_path, "a")
    command = ("-m", "secure_fd", "site", "init", "--data", str(records), "--name", "north")
    made, home = ended(*command), tmp_path / "a" / "home"
    assert (made.returncode, made.stderr) == (0, "")
    assert "records = 18" in (home / "north.toml").read_text()
    state = (home / "state").read_bytes()
    again = ended(*command)
    assert again.returncode == 2
    assert again.stderr.startswith("error: path: ")
    assert again.stderr.count("\n") == 1
    assert (home / "state").read_bytes() == state


@pytest.mark.parametrize("typed", [True, False])
@pytest.mark.parametrize("command", ["join", "serve"])
def test_a_roster_that_is_missing_is_named(tmp_path, capsys, command, typed):
    """Whether its name is typed or in a file of settings."""
    path, given = tmp_path / "any.toml", {"roster": str(tmp_path / "none.toml")}
    given |= {"data": str(tmp_path), "patience": "5"} if command == "join" else {}
    path.write_text("".join(f'{name} = "{value}"\n' for name, value in given.items()))
    options = [each for name, value in given.items() for each in (f"--{name}", value)]
    assert main([command, *(options if typed else ("--config", str(path)))]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error: roster: ")
    assert "none.toml" in line


def test_a_roster_is_made_from_a_file_with_the_names_of_the_recipe(tmp_path):
    """What is typed wins; a name that is no option is refused and makes nothing."""
    terms, out = tmp_path / "terms.toml", tmp_path / "roster.toml"
    settings = [
        f'home = "{tmp_path}/server"',
        f"cards = {list(_cards(tmp_path))}",
        f'proxies = "{tmp_path}/proxies"',
        'classes = ["cat", "dog"]',
        'address = "127.0.0.1:9443"',
        f'out = "{out}"',
        *("size = 16", "rounds = 7", 'method = "fedmd"'),
    ]
    terms.write_text("\n".join([*settings, "epsilons = 1"]))
    command = ["site", "roster", "--config", str(terms)]
    with pytest.raises(SystemExit, check=lambda ended: ended.code == 2):
        main(command)
    assert not out.exists()
    terms.write_text("\n".join(settings))
    assert main([*command, "--rounds", "3"]) == 0
    found = read(out)
    assert (found.terms.rounds, found.terms.method, found.classes) == (3, "fedmd", ("cat", "dog"))
