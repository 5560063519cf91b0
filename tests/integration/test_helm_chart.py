"""The chart, rendered by Helm itself, is the manifests that are committed; each choice fits too."""

import subprocess
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from penstock.local.process import built
from pump.config import load_settings
from pumpclient.mysql.source.command import load as load_source

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy/chart"
MANIFESTS = ROOT / "deploy/kubernetes/penstock.yaml"

pytestmark = pytest.mark.slow


def rendered(*values: str) -> str:
    """Return what Helm makes of the chart; `values` are name=value."""
    command = [built("helm", "helm"), "template", "penstock", str(CHART)]
    command += ["--namespace", "penstock"]
    for each in values:
        command += ["--set", each]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_manifests_are_what_the_chart_renders_to_as_it_is() -> None:
    head = "# helm template penstock deploy/chart --namespace penstock\n"
    assert MANIFESTS.read_text() == head + rendered()


def test_helm_finds_nothing_wrong_with_the_chart() -> None:
    command = [built("helm", "helm"), "lint", "--strict", str(CHART)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_cluster_with_tls_a_pd_and_a_storage_class_fits_the_schemas_too() -> None:
    text = rendered(
        "tls.secret=certificates",
        "pdAddress=pd:2379",
        "pump.storageClass=fast",
        "pump.arguments={--gc-days=3}",
    )
    manifests = list(yaml.safe_load_all(text))
    assert len(manifests) == 8
    for manifest in manifests:
        kubernetes_validate.validate(manifest, "1.33", strict=True)
    for wanted in ("--ssl-ca=/tls/ca.crt", "--pd-address=pd:2379", "--gc-days=3", "secretName"):
        assert wanted in text


def test_a_source_is_there_when_it_has_a_password_and_takes_its_arguments() -> None:
    text = rendered(
        "source.passwordSecret=account",
        "source.arguments={--source-host=db,--source-user=penstock,--mode=all}",
        "tls.secret=certificates",
    )
    manifests = list(yaml.safe_load_all(text))
    for manifest in manifests:
        kubernetes_validate.validate(manifest, "1.33", strict=True)
    (source,) = [
        each["spec"]["template"]["spec"]["containers"][0]
        for each in manifests
        if (each["kind"], each["metadata"]["name"]) == ("StatefulSet", "penstock-source")
    ]
    settings = load_source(source["args"][1:])
    assert settings.source.host == "db"
    assert settings.security.ssl_key == "/tls/tls.key"
    assert settings.status_addr == f"0.0.0.0:{source['ports'][0]['containerPort']}"
    (password,) = [each for each in source["env"] if "PASSWORD" in each["name"]]
    assert password["name"] == "MYSQL_SOURCE_SOURCE_PASSWORD"
    assert password["valueFrom"] == {"secretKeyRef": {"name": "account", "key": "password"}}


def test_pumps_with_copies_are_on_machines_of_their_own() -> None:
    manifests = list(yaml.safe_load_all(rendered("pump.copies=2")))
    for manifest in manifests:
        kubernetes_validate.validate(manifest, "1.33", strict=True)
    (pump,) = [
        each["spec"]["template"]["spec"]
        for each in manifests
        if (each["kind"], each["metadata"]["name"]) == ("StatefulSet", "penstock-pump")
    ]
    (rule,) = pump["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert rule["topologyKey"] == "kubernetes.io/hostname"
    (container,) = pump["containers"]
    settings, _ = load_settings(
        [each.replace("$(POD_NAME)", "n-0") for each in container["args"][1:]]
    )
    assert settings.copies == 2
