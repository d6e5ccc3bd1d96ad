"""`secure-fd site`, `serve` and `join` as an operator meets them: one sentence, an exit status."""

import pytest

from secure_fd.cli import main
from secure_fd.deployment.roster import read
from tests.drivers.flower_federation import Enrolled, image_folders
from tests.programs import ended

pytest.importorskip("flwr", reason='needs the extra: pip install "secure-fd[flower]"')


def test_keys_are_made_once_beside_the_records(tmp_path, capsys):
    """In a process of its own, as all of it is in real use."""
    [records] = image_folders(tmp_path, "a")
    command = ("site", "init", "--data", str(records), "--name", "north")
    made, home = ended("-m", "secure_fd", *command), tmp_path / "a" / "home"
    assert (made.returncode, made.stderr) == (0, "")
    assert "records = 18" in (home / "north.toml").read_text()
    state = (home / "state").read_bytes()
    assert main(command) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error: path: ")
    assert (home / "state").read_bytes() == state


@pytest.mark.parametrize("command", ["join", "serve"])
def test_a_roster_that_is_missing_is_named_also_where_a_file_of_settings_names_it(
    tmp_path, capsys, command
):
    path = tmp_path / "any.toml"
    data = f'data = "{tmp_path}"\npatience = 5\n' if command == "join" else ""
    path.write_text(f'roster = "{tmp_path}/none.toml"\n{data}')
    assert main([command, "--config", str(path)]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error: roster: ")
    assert "none.toml" in line


def test_a_roster_is_made_from_a_file_with_the_names_of_the_recipe(tmp_path):
    """Command-line values override the file; an unknown option is refused and writes nothing."""
    terms, out, made = tmp_path / "terms.toml", tmp_path / "roster.toml", Enrolled(tmp_path / "f")
    settings = [
        f'home = "{tmp_path}/server"',
        f"cards = {[str(path) for path in made.cards('abc')]}",
        f'proxies = "{made.folder}/proxies"',
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
