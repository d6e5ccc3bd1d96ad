"""The units and the containers of examples/hospitals: read by their own verifiers, where these are
there, and their commands by the command line's own parser. No service manager runs here.
"""

import configparser
import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import tyro

from secure_fd.cli import USAGE_ERROR
from secure_fd.deployment import serve
from secure_fd.deployment.serve import ServeCommand
from secure_fd.deployment.site import JoinCommand
from tests.programs import ROOT

EXAMPLE = ROOT / "examples" / "hospitals"
PROGRAM = "/opt/secure-fd/bin/secure-fd"
BOTH = pytest.mark.parametrize("name", ["site", "server"])


def _parsed(words):
    """A command with its options; the parser ends the test for an option that does not exist."""
    return tyro.cli({"join": JoinCommand, "serve": ServeCommand}[words[0]], args=words[1:])


@BOTH
def test_a_unit_runs_a_command_that_exists_and_may_write_its_home_alone(name):
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str
    unit.read(EXAMPLE / f"secure-fd-{name}.service")
    service = unit["Service"]
    program, *words = shlex.split(service["ExecStart"])
    assert program == PROGRAM
    command, written = _parsed(words), Path(service["ReadWritePaths"])
    kept = [command.home, *([command.ledger] if name == "site" else [])]
    assert all(written in path.parents for path in kept)
    assert not any(written in path.parents for path in (command.roster, command.proxies))
    hardened = {"NoNewPrivileges": "yes", "ProtectSystem": "strict", "PrivateTmp": "yes"}
    again = {"Restart": "on-failure", "RestartPreventExitStatus": str(USAGE_ERROR)}
    assert (hardened | again).items() <= dict(service).items()
    assert int(service["RestartSec"]) > 0


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not there")
@BOTH
def test_systemd_takes_a_unit(tmp_path, name):
    """The program is not installed at its place here, so another one stands there."""
    text = (EXAMPLE / f"secure-fd-{name}.service").read_text().replace(PROGRAM, "/bin/true")
    path = tmp_path / f"secure-fd-{name}.service"
    for change, fine in (("", True), ("ProtectSystem=yess\n", False)):
        path.write_text(text.replace("[Service]\n", f"[Service]\n{change}"))
        command = ["systemd-analyze", "verify", "--man=no", str(path)]
        found = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
        assert (found.returncode == 0 and path.name not in found.stderr) == fine, found.stderr


def test_containers_run_commands_that_exist_and_are_given_what_these_read():
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    services = yaml.safe_load((EXAMPLE / "compose.yaml").read_text())["services"]
    assert set(services) == {"server", "north", "south", "west"}
    for service in services.values():
        command = _parsed(shlex.split(service["command"]))
        mounts = {Path(volume.split(":")[1]) for volume in service["volumes"]}
        read = {command.roster, command.proxies, command.home}
        assert read | {getattr(command, "data", command.home)} <= mounts
        assert not [each for each in service["volumes"] if ":ro" in each and "home" in each]


@pytest.mark.skipif(not shutil.which("docker"), reason="docker is not there")
def test_docker_takes_the_compose_file():
    compose = ["docker", "compose"]
    if subprocess.run([*compose, "version"], capture_output=True, check=False).returncode:  # noqa: S603
        pytest.skip("docker compose is not there")
    command = [*compose, "--file", str(EXAMPLE / "compose.yaml"), "config", "--quiet"]
    subprocess.run(command, check=True, env=os.environ | {"HOSPITALS": "/srv"})  # noqa: S603


def test_logs_that_grow_too_long_are_moved_and_their_writers_go_on(tmp_path, monkeypatch):
    monkeypatch.setattr(serve, "_LOG_BYTES", 10)
    log, old = tmp_path / "flower.log", tmp_path / "flower.log.old"
    with log.open("a") as writer:
        for text, moved in (("short\n", False), ("long enough\n", True), ("next\n", True)):
            writer.write(text)
            writer.flush()
            serve._bound(log)
            assert old.exists() is moved
    assert old.read_text() == "short\nlong enough\n"
    assert log.read_text() == "next\n"


def test_a_server_app_that_never_begins_is_given_up(tmp_path, monkeypatch):
    (tmp_path / "flower").mkdir()
    hung = subprocess.Popen(["/bin/sleep", "60"])
    monkeypatch.setattr(serve, "_started", lambda *_: hung)
    monkeypatch.setattr(serve, "_START", 0.1)
    with pytest.raises(OSError, match="flwr run"):
        serve._flwr_run({"home": tmp_path}, tmp_path, 1, print)
    assert hung.wait(5) != 0
