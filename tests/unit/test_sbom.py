"""The SBOM of `make dist` lists what is installed, with the licences."""

import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import distributions, version
from pathlib import Path
from typing import Any

import pytest

from deploy.sbom import name_of, purl

ROOT = Path(__file__).resolve().parents[2]
PREFIX = "penstock_binlog-0.0"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("dist")
    command = [sys.executable, str(ROOT / "deploy/sbom.py"), str(made / PREFIX)]
    subprocess.run(command, cwd=made, check=True, timeout=60)
    return made


@pytest.fixture(scope="module")
def bom(folder: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((folder / f"{PREFIX}.cdx.json").read_text())
    return read


def test_every_installed_package_is_a_component_with_its_version(bom: dict[str, Any]) -> None:
    assert (bom["bomFormat"], bom["specVersion"]) == ("CycloneDX", "1.6")
    assert bom["metadata"]["component"]["name"] == "penstock-binlog"
    installed = {purl(each) for each in distributions()}
    own = bom["metadata"]["component"]["purl"]
    listed = [each["purl"] for each in bom["components"]]
    assert len(listed) == len(set(listed))
    left_out = installed - set(listed) - {own}
    assert {each.split("@")[0] for each in left_out} <= {"pkg:pypi/pip", "pkg:pypi/setuptools"}
    assert f"pkg:pypi/grpcio@{version('grpcio')}" in listed


def test_dependencies_are_those_that_the_packages_declare(bom: dict[str, Any]) -> None:
    needs = {each["ref"]: each["dependsOn"] for each in bom["dependencies"]}
    assert needs.keys() == {
        each["purl"] for each in (bom["metadata"]["component"], *bom["components"])
    }
    assert {ref for refs in needs.values() for ref in refs} <= needs.keys()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    own = {ref.split("@")[0] for ref in needs[bom["metadata"]["component"]["purl"]]}
    assert {f"pkg:pypi/{name_of(each)}" for each in project["dependencies"]} <= own
    (crypto,) = [ref for ref in needs if ref.startswith("pkg:pypi/cryptography@")]
    assert [ref.split("@")[0] for ref in needs[crypto]] == ["pkg:pypi/cffi"]


def test_each_package_has_a_line_with_its_licence(folder: Path, bom: dict[str, Any]) -> None:
    lines = (folder / f"{PREFIX}.licences.txt").read_text().splitlines()
    assert len(lines) == 1 + len(bom["components"])
    assert lines[0].endswith(": Apache-2.0")
    told = dict(line.split(": ", 1) for line in lines)
    assert told[f"protobuf {version('protobuf')}"] == "3-Clause BSD License"
    assert told[f"cryptography {version('cryptography')}"] == "Apache-2.0 OR BSD-3-Clause"
    assert told[f"plyvel {version('plyvel')}"] == "BSD License"
    for each in bom["components"]:
        names = [x.get("expression") or x["license"]["name"] for x in each["licenses"]]
        assert told[f"{each['name']} {each['version']}"] == (", ".join(names) or "declares none")


def test_the_distribution_has_the_list_of_all_its_packages() -> None:
    script = (ROOT / "deploy/dist.sh").read_text()
    assert re.search(r'all/bin/python" deploy/sbom\.py "\$\{wheel%-py3', script)
