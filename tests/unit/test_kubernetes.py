"""The manifests are Kubernetes' own kinds, and what they start takes its arguments."""

import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from drainer.settings import compat
from penstock.ctl.console.__main__ import main
from penstock.node.http_status import HEALTH, READY
from pump.config import load_settings as load_pump

ROOT = Path(__file__).resolve().parents[2]
MANIFESTS = list(yaml.safe_load_all((ROOT / "deploy/kubernetes/penstock.yaml").read_text()))
LOADERS: dict[str, Any] = {
    "pump": load_pump,
    "drainer": lambda argv: compat.load_settings(argv, prog="drainer"),
}


def of_kind(kind: str) -> list[dict[str, Any]]:
    return [each for each in MANIFESTS if each["kind"] == kind]


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda each: each["kind"])
@pytest.mark.parametrize("version", ["1.29", "1.33"])
def test_a_manifest_fits_the_schema_of_its_kind(manifest: dict[str, Any], version: str) -> None:
    kubernetes_validate.validate(manifest, version, strict=True)


def test_each_node_takes_its_arguments_and_listens_where_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DRAINER_SINK", "mysql://penstock:secret@db:3306/")
    for node in of_kind("StatefulSet"):
        (container,) = node["spec"]["template"]["spec"]["containers"]
        role, *arguments = [each.replace("$(POD_NAME)", "n-0") for each in container["args"]]
        settings, _ = LOADERS[role](arguments)
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert settings.addr == f"0.0.0.0:{ports['grpc']}"
        assert settings.status_addr == f"0.0.0.0:{ports['status']}"
        host = settings.advertise_addr.split(":")[0]
        (service,) = [s for s in of_kind("Service") if s["metadata"]["name"] == host.split(".")[1]]
        assert service["spec"]["clusterIP"] == "None"
        offered = {port["name"]: port["port"] for port in service["spec"]["ports"]}
        assert offered == ports
        assert str(settings.data_dir).startswith("/data/")


def test_the_console_takes_its_arguments_and_is_a_service() -> None:
    (console,) = of_kind("Deployment")
    (container,) = console["spec"]["template"]["spec"]["containers"]
    program, *arguments = container["args"]
    (port,) = container["ports"]
    assert (program, arguments) == ("console", [f"--addr=0.0.0.0:{port['containerPort']}"])
    with pytest.raises(SystemExit) as end:
        main([*arguments, "--version"])
    assert end.value.code == 0
    name = console["metadata"]["name"]
    (service,) = [each for each in of_kind("Service") if each["metadata"]["name"] == name]
    assert service["spec"]["ports"] == [{"name": port["name"], "port": port["containerPort"]}]


def test_kubernetes_asks_the_pages_of_health_and_readiness() -> None:
    for node in of_kind("StatefulSet") + of_kind("Deployment"):
        (container,) = node["spec"]["template"]["spec"]["containers"]
        for probe, path in (("readinessProbe", READY), ("livenessProbe", HEALTH)):
            assert container[probe]["httpGet"] == {"path": path, "port": "status"}


def test_no_node_runs_as_root_or_writes_outside_of_its_volumes() -> None:
    for node in of_kind("StatefulSet") + of_kind("Deployment"):
        pod = node["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"]
        (container,) = pod["containers"]
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_the_account_is_the_one_of_the_image() -> None:
    image = (ROOT / "deploy/container/Containerfile").read_text()
    (account,) = re.findall(r"^USER (\d+):", image, re.MULTILINE)
    for node in of_kind("StatefulSet"):
        assert node["spec"]["template"]["spec"]["securityContext"]["runAsUser"] == int(account)
