"""What is missing is installed at once, or named in one line with its Debian packages.

The script runs with a PATH of the test's own, where `id` and `apt-get` are the test's too.
"""

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from deploy.generated import GRPC, PROTOBUF
from penstock.errors import NeedsOperator
from penstock.local.process import needed, program

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "deploy" / "packages.sh"
TOOLS = ("bash", "dirname", "grep", "sort", "tr")


class Machine:
    """A machine with a few tools, and with what a test adds."""

    def __init__(self, home: Path, *, user_id: int = 0) -> None:
        self.bin = home / "bin"
        self.bin.mkdir()
        self.installed = home / "installed"
        for tool in TOOLS:
            found = shutil.which(tool)
            assert found
            (self.bin / tool).symlink_to(found)
        self.add("id", f"echo {user_id}")

    def add(self, name: str, script: str = "exit 0") -> None:
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def add_apt(self) -> None:
        """Put an apt-get there that writes down what it is asked for."""
        self.add("apt-get", f'echo "$@" >> {self.installed}')

    def asks(self, *wanted: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(SCRIPT), *wanted],
            env={"PATH": str(self.bin)},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )


def test_without_root_one_line_names_all_that_is_missing_and_its_packages(tmp_path: Path) -> None:
    machine = Machine(tmp_path, user_id=1000)
    machine.add_apt()
    done = machine.asks("sysbench", "clients")
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "setup: missing here: mariadb mariadb-dump mariadb-binlog mariadb-tzinfo-to-sql sysbench;"
        " as root: apt-get install --no-install-recommends"
        " mariadb-client mariadb-client-core sysbench"
    ]
    assert not machine.installed.exists()


def test_with_root_all_packages_are_installed_at_once(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.add_apt()
    machine.add("mariadb")
    assert machine.asks("sysbench", "clients").returncode == 0
    update, install = machine.installed.read_text().splitlines()
    assert update.startswith("update")
    assert install.endswith(" mariadb-client sysbench")


def test_nothing_is_asked_of_anybody_when_all_is_there(tmp_path: Path) -> None:
    machine = Machine(tmp_path, user_id=1000)
    machine.add("sysbench")
    done = machine.asks("sysbench")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_machine_without_apt_gets_the_name_that_debian_has_for_it(tmp_path: Path) -> None:
    done = Machine(tmp_path).asks("sysbench")
    assert done.returncode == 1
    assert done.stderr == "setup: missing here: sysbench; Debian has them in sysbench\n"


def test_a_name_that_is_not_in_the_table_is_refused(tmp_path: Path) -> None:
    done = Machine(tmp_path).asks("sysbnch")
    assert done.returncode == 1
    assert "no sysbnch in" in done.stderr


def test_the_table_has_every_program_that_is_asked_for_by_name() -> None:
    files = [
        path for name in ("proto/penstock/local", "tests") for path in (ROOT / name).rglob("*.py")
    ]
    asked = re.compile(r'\bprogram\("([\w-]+)"')
    names = {name for file in files for name in asked.findall(file.read_text())}
    assert {"mariadbd", "mariadb-binlog", "mariadb-tzinfo-to-sql", "sysbench"} <= names
    assert names <= {row.program for row in needed()}


@pytest.mark.parametrize(
    ("goal", "some"),
    [
        (["demo", "SINK=mysql"], {"mariadb"}),
        (["demo", "SOURCE=mysql"], {"mariadb", "sysbench"}),
        (["demo", "SOURCE=tidb"], {"mariadb", "sysbench", "tidb"}),
        (["test-tidb"], {"mariadb", "sysbench", "tidb"}),
        (["test"], {"mariadb", "clients", "tests", "servers"}),
        (
            ["test-slow"],
            {
                "mariadb",
                "clients",
                "tests",
                "servers",
                "suite",
                "sysbench",
                "conformance",
                "helm",
                "kafka",
                "obinlog",
                "versitygw",
                "connect",
                "flink",
                "delta-spark",
            },
        ),
        (["bench", "ONLY=mysql"], {"mariadb", "clients", "sysbench"}),
        (["bench", "ONLY=outputs"], {"mariadb", "clients", "sysbench", "kafka"}),
        (["bench", "ONLY=peers"], {"mariadb", "clients", "sysbench", "kafka", "connect"}),
        (["bench"], {"mariadb", "clients", "sysbench", "kafka"}),
        (["demo", "SINK=kafka"], {"kafka"}),
    ],
)
def test_a_goal_wants_all_that_it_needs_before_anything_starts(
    goal: list[str], some: set[str]
) -> None:
    steps = subprocess.run(
        ["make", "--dry-run", "--no-print-directory", *goal],
        cwd=ROOT, env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    first, option, _, *wanted = steps[0].split()
    assert (first, option) == ("deploy/setup.sh", "-x")
    assert set(wanted) == some
    assert set(wanted) <= {name for row in needed() for name in row.wanted_for}


@pytest.mark.parametrize(
    ("goals", "extras"),
    [
        (["demo"], "demo"),
        (["demo", "SINK=delta"], "demo"),
        (["demo", "SINK=kafka"], "demo,kafka"),
        (["demo", "test"], "dev"),
        (["test-all"], "dev"),
        (["docs"], "dev"),
        (["setup"], "dev"),
    ],
)
def test_a_goal_installs_the_packages_that_it_needs_and_no_others(
    goals: list[str], extras: str
) -> None:
    steps = subprocess.run(
        ["make", "--dry-run", "--no-print-directory", *goals],
        cwd=ROOT, env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    assert steps[0].split()[:3] == ["deploy/setup.sh", "-x", extras]
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(extras.split(",")) <= known.keys()
    assert "penstock-binlog[demo,console,kafka,s3]" in known["dev"], "dev has what the demo has"


def test_a_hint_names_the_package_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    for row in needed():
        with pytest.raises(NeedsOperator) as refused:
            program(row.program)
        assert refused.value.hint.endswith(f"apt-get install {row.package}")


@pytest.mark.parametrize("extra", ["mysql", "drainer"])
def test_who_logs_in_to_a_mysql_without_tls_gets_what_that_takes(extra: str) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    brought = set(extras[extra])
    if "penstock-binlog[mysql]" in brought:
        brought |= set(extras["mysql"])
    assert any(requirement.startswith("cryptography") for requirement in brought)


class SetUp:
    """A clone in whose environment pip only writes down what it is asked to install."""

    def __init__(self, home: Path, pip: str) -> None:
        (home / "deploy").mkdir()
        for name in ("setup.sh", "packages.sh", "packages.txt", "constraints.txt"):
            shutil.copy(ROOT / "deploy" / name, home / "deploy")
        shutil.copy(ROOT / "pyproject.toml", home)
        (home / ".venv/bin").mkdir(parents=True)
        (home / ".venv/servers/etcd").mkdir(parents=True)
        python = home / ".venv/bin/python"
        python.write_text(f'#!/bin/sh\ncase "$*" in *"pip install"*) {pip};; esac\n')
        python.chmod(0o755)
        self.home = home

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(self.home / "deploy/setup.sh"), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)

    def asked(self, *arguments: str) -> list[str]:
        """Set up, and return what pip was asked to install."""
        asked = self.home / "asked"
        asked.unlink(missing_ok=True)
        done = self.run(*arguments)
        assert done.returncode == 0, done.stderr
        return asked.read_text().split() if asked.exists() else []


def test_a_set_up_that_pip_ends_says_why_pip_did(tmp_path: Path) -> None:
    done = SetUp(tmp_path, 'echo "They conflict."; exit 1').run()
    assert done.returncode == 1
    assert "They conflict.\nsetup: pip has failed" in done.stderr
    assert list((tmp_path / ".venv").glob("installed*")) == []


def test_a_set_up_installs_each_extra_once_and_again_when_the_packages_change(
    tmp_path: Path,
) -> None:
    clone = SetUp(tmp_path, f'for last; do :; done; echo "$last" >> {tmp_path}/asked')
    assert clone.asked("-x", "demo") == [".[demo]"]
    assert clone.asked("-x", "demo") == []
    assert clone.asked("-x", "demo,kafka") == [".[demo,kafka]"]
    assert clone.asked() == [".[dev]"]
    assert clone.asked("-x", "dev") == []
    with (tmp_path / "deploy/constraints.txt").open("a") as constraints:
        constraints.write("another==1\n")
    assert clone.asked("-x", "dev") == [".[dev]"]
    assert clone.asked("-x", "demo") == []  # dev has it.


def test_the_generated_code_requires_the_oldest_versions_that_may_be_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {f"grpcio>={GRPC}", f"protobuf>={PROTOBUF}"} <= set(project["dependencies"])
    versions = {
        version
        for path in (ROOT / "proto/penstock/pb").rglob("*_pb2*.py")
        for version in re.findall(
            r"(?:Python Version: |GENERATED_VERSION = ')([\d.]+)", path.read_text()
        )
    }
    assert versions == {GRPC, PROTOBUF}
