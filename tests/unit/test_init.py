"""What `penstock init` writes is what the programs take."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from drainer.settings import compat
from penstock import __version__
from penstock.ctl.console.__main__ import load as load_console
from penstock.local import init
from penstock.local.demo import __main__ as demo
from pump.config import load_settings as load_pump
from pumpclient.mysql.source.command import load as load_source

LOADERS: dict[str, Any] = {
    "pump": load_pump,
    "drainer": lambda argv: compat.load_settings(argv, prog="drainer"),
    "source": load_source,
    "console": load_console,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("init") / "shop"
    assert init.main([str(made)]) == 0
    return made


@pytest.mark.parametrize("program", [init, demo])
def test_each_prints_its_version(program: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        program.main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"penstock {program.__name__.split('.')[2]} {__version__}\n"


def test_the_files_that_were_written_are_one_document_of_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert init.main([str(tmp_path / "new"), "-o", "json"]) == 0
    written = json.loads(capsys.readouterr().out)["files"]
    assert {Path(each) for each in written} == {
        each for each in (tmp_path / "new").rglob("*") if each.is_file()
    }


def services(folder: Path) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load((folder / "compose/compose.yaml").read_text())
    return found["services"]


def test_a_folder_that_has_such_files_is_left_as_it_is(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.stat() for path in folder.rglob("*")}
    assert init.main([str(folder)]) == 2
    assert "already (name a new folder)" in capsys.readouterr().err
    assert {path: path.stat() for path in folder.rglob("*")} == before


@pytest.mark.parametrize(
    ("role", "file"),
    [("pump", "pump.toml"), ("drainer", "drainer.toml"), ("source", "mysql_source.toml")],
)
def test_each_role_takes_its_settings(role: str, file: str, folder: Path) -> None:
    assert LOADERS[role](["--config", str(folder / file)])


def test_a_drainer_takes_the_settings_for_each_kind_of_spark_cluster(folder: Path) -> None:
    masters = set()
    for path in sorted((folder / "spark").iterdir()):
        settings, _ = LOADERS["drainer"](["--config", str(path)])
        assert settings.spark.payloads == "executors"
        masters.add(settings.spark.master.split(":")[0])
    assert masters == {"spark", "yarn", "k8s"}


def test_the_compose_file_asks_each_role_whether_it_is_ready(folder: Path) -> None:
    ports = {"pump": 9250, "drainer": 9249, "source": 9251, "console": 9252}
    for service in services(folder).values():
        if service["image"] == "penstock":
            port, asked = ports[service["command"][0]], service["healthcheck"]["test"]
            assert asked[:3] == ["CMD", "python", "-c"]
            assert f"'http://127.0.0.1:{port}/readyz'" in asked[3]
            settings = " ".join([*service["command"], *service.get("environment", {}).values()])
            assert f"0.0.0.0:{port}" in settings or f"127.0.0.1:{port}" in settings


def test_each_role_takes_its_arguments_in_the_compose_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    roles = set()
    for service in services(folder).values():
        if service["image"] == "penstock":
            role, *arguments = service["command"]
            with monkeypatch.context() as environment:
                for name, value in service.get("environment", {}).items():
                    environment.setenv(name, value)
                assert LOADERS[role](arguments)
            roles.add(role)
    assert roles == LOADERS.keys()


def test_every_file_that_the_compose_file_mounts_is_there(folder: Path) -> None:
    mounts = [m for service in services(folder).values() for m in service.get("volumes", [])]
    files = [mount.split(":")[0] for mount in mounts if mount.startswith(".")]
    assert len(files) > 5
    assert [file for file in files if not (folder / "compose" / file).is_file()] == []


def test_the_password_of_a_compose_file_is_new_and_only_for_its_owner(
    folder: Path, tmp_path: Path
) -> None:
    assert init.main([str(tmp_path / "other")]) == 0
    mine, other = (each / "compose/.env" for each in (folder, tmp_path / "other"))
    assert mine.read_text() != other.read_text()
    assert mine.stat().st_mode & 0o777 == 0o600


def test_units_start_the_programs_that_are_installed_here(folder: Path) -> None:
    unit = (folder / "systemd/penstock-pump.service").read_text()
    assert f"ExecStart={Path(sys.executable).parent}/penstock pump --config" in unit


def test_every_program_is_there_under_the_one_name(tmp_path: Path) -> None:
    def penstock(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "penstock", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    listed = penstock("--help").stdout
    for name in ("pump", "drainer", "source", "ctl", "console", "verify", "init", "demo"):
        assert f"  {name} " in listed
        asked = penstock(name, "--help")
        assert asked.returncode == 0, asked.stderr
        assert "usage: " in asked.stdout
    mistyped = penstock("dranier")
    assert mistyped.returncode == 2
    assert mistyped.stderr == "penstock: no program dranier (did you mean drainer?) [PS-1302]\n"
    assert penstock().returncode == 2
