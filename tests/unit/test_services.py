"""The units and the containers of examples/hospitals: read by their own verifiers, where these are
there, and their commands by the command line's own parser. No service manager runs here.
"""

import configparser
import os
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import tyro

from secure_fd.cli import USAGE_ERROR
from secure_fd.deployment import serve
from secure_fd.deployment.serve import ServeCommand
from secure_fd.deployment.site import JoinCommand

EXAMPLE = Path(__file__).parents[2] / "examples" / "hospitals"
UNITS = ("site", "server")
PROGRAM = "/opt/secure-fd/bin/secure-fd"


def _parsed(words: list[str]) -> Any:
    """A command with its options; the parser ends the test for an option that does not exist."""
    kind: Any = {"join": JoinCommand, "serve": ServeCommand}[words[0]]
    return tyro.cli(kind, args=words[1:])


def _service(name: str) -> configparser.SectionProxy:
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(EXAMPLE / f"secure-fd-{name}.service")
    return unit["Service"]


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_runs_a_command_that_exists_and_may_write_its_home_alone(name):
    service = _service(name)
    program, *words = shlex.split(service["ExecStart"])
    assert program == PROGRAM
    command = _parsed(words)
    written = Path(service["ReadWritePaths"])
    assert written in command.home.parents
    if name == "site":
        assert written in command.ledger.parents
    for path in (command.roster, command.proxies):
        assert written not in path.parents
    hardened = {"NoNewPrivileges": "yes", "ProtectSystem": "strict", "PrivateTmp": "yes"}
    assert hardened.items() <= dict(service).items()


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_starts_again_but_after_a_refused_setting(name):
    service = _service(name)
    assert service["Restart"] == "on-failure"
    assert int(service["RestartSec"]) > 0
    assert service["RestartPreventExitStatus"] == str(USAGE_ERROR)


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not there")
@pytest.mark.parametrize(("change", "fine"), [("", True), ("ProtectSystem=yess\n", False)])
@pytest.mark.parametrize("name", UNITS)
def test_systemd_takes_a_unit(tmp_path, name, change, fine):
    """The program is not installed at its place here, so another one stands there."""
    text = (EXAMPLE / f"secure-fd-{name}.service").read_text().replace(PROGRAM, "/bin/true")
    path = tmp_path / f"secure-fd-{name}.service"
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
        assert {command.roster, command.proxies, command.home} <= mounts
        assert not [each for each in service["volumes"] if ":ro" in each and "home" in each]
        data = getattr(command, "data", command.home)
        assert data in mounts


def _has_compose() -> bool:
    if shutil.which("docker") is None:
        return False
    command = ["docker", "compose", "version"]
    return not subprocess.run(command, capture_output=True, check=False).returncode  # noqa: S603


@pytest.mark.skipif(not _has_compose(), reason="docker compose is not there")
def test_docker_takes_the_compose_file():
    path = EXAMPLE / "compose.yaml"
    command = ["docker", "compose", "--file", str(path), "config", "--quiet"]
    subprocess.run(command, check=True, env=os.environ | {"HOSPITALS": "/srv"})  # noqa: S603


def test_logs_that_grow_too_long_are_moved_and_their_writers_go_on(tmp_path, monkeypatch):
    monkeypatch.setattr(serve, "_LOG_BYTES", 10)
    log = tmp_path / "flower.log"
    serve._bound(log)
    with log.open("a") as writer:
        for text, kept in (("short\n", None), ("long enough\n", "short\nlong enough\n")):
            writer.write(text)
            writer.flush()
            serve._bound(log)
            old = tmp_path / "flower.log.old"
            assert (old.read_text() if old.exists() else None) == kept
        writer.write("next\n")
    assert log.read_text() == "next\n"
