"""Lists the packages of an environment: as an SBOM (CycloneDX, JSON), and with their licences.

    PYTHON deploy/sbom.py PREFIX     writes PREFIX.cdx.json and PREFIX.licences.txt

It describes the environment of that Python, in which Penstock is installed with the extras that are
of interest; a package is recorded as it declares itself. It needs no package but pip.
"""

import json
import re
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path
from typing import Any, Final

from pip._vendor.packaging.requirements import Requirement

ROOT: Final = "penstock-binlog"
_INSTALLERS: Final = {"pip", "setuptools", "wheel"}
_OSI: Final = "License :: OSI Approved :: "


def name_of(text: str) -> str:
    """Return the normalized name of a package or of a requirement."""
    return re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", text.strip(), maxsplit=1)[0]).lower()


def purl(package: Distribution) -> str:
    return f"pkg:pypi/{name_of(package.name)}@{package.version}"


def licences(package: Distribution) -> list[str]:
    """Return the declared licences: an SPDX expression, else classifiers, else the first line."""
    about = package.metadata
    if "License-Expression" in about:
        return [about["License-Expression"]]
    classes = about.get_all("Classifier") or []
    found = [each.removeprefix(_OSI) for each in classes if each.startswith(_OSI)]
    return found or (about.get_all("License") or [""])[0].strip().splitlines()[:1]


def _component(package: Distribution, kind: str) -> dict[str, Any]:
    found = licences(package)
    if "License-Expression" in package.metadata:
        listed: list[dict[str, Any]] = [{"expression": found[0]}]
    else:
        listed = [{"license": {"name": each}} for each in found]
    return {
        "type": kind,
        "bom-ref": purl(package),
        "name": package.name,
        "version": package.version,
        "purl": purl(package),
        "licenses": listed,
    }


def _needed(package: Distribution, refs: dict[str, str]) -> Iterator[str]:
    extras = package.metadata.get_all("Provides-Extra") or [] if package.name == ROOT else []
    for requirement in map(Requirement, package.requires or ()):
        marker, ref = requirement.marker, refs.get(name_of(requirement.name))
        if ref is None:
            continue
        if marker is None or any(marker.evaluate({"extra": each}) for each in ("", *extras)):
            yield ref


def bom(root: Distribution, packages: Sequence[Distribution]) -> dict[str, Any]:
    """Return the SBOM; a requirement that is not installed is left out."""
    refs = {name_of(package.name): purl(package) for package in packages}
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": _component(root, "application")},
        "components": [_component(package, "library") for package in packages],
        "dependencies": [
            {"ref": purl(each), "dependsOn": sorted(set(_needed(each, refs)))}
            for each in (root, *packages)
        ],
    }


def main(prefix: str) -> None:
    root = distribution(ROOT)
    found = {name_of(each.name): each for each in distributions()}
    others = [found[name] for name in sorted(found.keys() - _INSTALLERS - {ROOT})]
    text = json.dumps(bom(root, others), indent=2, ensure_ascii=False)
    Path(f"{prefix}.cdx.json").write_text(f"{text}\n", encoding="utf-8")
    lines = [
        f"{each.name} {each.version}: {', '.join(licences(each)) or 'declares none'}\n"
        for each in (root, *others)
    ]
    Path(f"{prefix}.licences.txt").write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
