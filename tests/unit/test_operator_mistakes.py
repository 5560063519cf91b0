"""What an operator gets wrong is one line with a remedy, and the exit code says who must act."""

import importlib
import os
import re
import signal
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from penstock.codes import Code
from penstock.errors import NeedsOperator
from penstock.node import command
from penstock.node.command import CUT_OFF, EXTRAS, ending
from pumpclient import Tls

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SITE = Path(sysconfig.get_path("purelib"))
MODULES = {
    "pump": "pump",
    "drainer": "drainer",
    "source": "pumpclient.mysql.source",
    "penstock": "penstock",
    "ctl": "penstock.ctl.commands",
}
EXTRA_OF = {"pump": "pump", "drainer": "drainer", "source": "mysql", "penstock": "mysql"}
Run = Callable[..., "subprocess.CompletedProcess[str]"]
NOWHERE = "127.0.0.1:1"


def run(
    program: str, *arguments: str, without: str = "", folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program; `without` is a package that the Python it runs on really lacks."""
    flags: Sequence[str] = ()
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'proto'}"}
    if without:
        assert folder is not None
        for entry in SITE.iterdir():
            if entry.name.partition(".")[0] != without and entry.suffix != ".pth":
                (folder / entry.name).symlink_to(entry)
        environment["PYTHONPATH"] += f"{os.pathsep}{folder}"
        flags = ("-S",)  # No site-packages but the folder's.
    words = [sys.executable, *flags, "-m", MODULES[program], *arguments]
    return subprocess.run(
        words,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def assert_one_line(done: subprocess.CompletedProcess[str], code: int = 2) -> str:
    assert "Traceback" not in done.stderr
    assert done.returncode == code, done.stderr
    (line,) = done.stderr.splitlines()
    return line


@pytest.mark.parametrize(
    ("program", "package", "asked"),
    [
        ("pump", "plyvel", "--help"),
        ("pump", "plyvel", "--addr=127.0.0.1:0"),
        ("drainer", "pyarrow", "--help"),
        ("source", "pymysql", "--help"),
    ],
)
def test_a_missing_extra_is_one_line_that_says_how_to_install_it(
    program: str, package: str, asked: str, tmp_path: Path
) -> None:
    line = assert_one_line(run(program, asked, without=package, folder=tmp_path))
    remedy = f"install Penstock with the extra {EXTRA_OF[program]}"
    assert (
        line == f"penstock {program}: the package {package} is not installed ({remedy}) [PS-1009]"
    )


def test_verifying_without_its_extra_is_one_line_too(tmp_path: Path) -> None:
    done = run("penstock", "verify", "--help", without="pymysql", folder=tmp_path)
    assert "install Penstock with the extra mysql" in assert_one_line(done)


def test_every_package_of_an_extra_is_known_with_the_extra_that_brings_it() -> None:
    imports = {"grpcio-health-checking": "grpc_health", "grpcio-reflection": "grpc_reflection"}
    for extra in ("pump", "drainer", "mysql"):
        for wanted in PROJECT["optional-dependencies"][extra]:
            name = re.split(r"[<>=]", wanted)[0]
            if name.startswith("penstock-binlog["):
                continue
            package = imports.get(name, name.lower().replace("-", "_"))
            assert extra in EXTRAS[package], f"{name} of [{extra}]"


def test_a_module_of_our_own_that_is_missing_is_a_defect_and_keeps_its_traceback() -> None:
    assert ending(ModuleNotFoundError("No module named 'pump.gone'", name="pump.gone")) is None


NODE = ("--addr", "127.0.0.1:0", "--status-addr", "off")
MISTAKES: dict[str, tuple[str, Sequence[str], str]] = {
    "a config that is not there": ("pump", ["--config", "/nowhere.toml"], "cannot read"),
    "a config that is a directory": ("drainer", ["--config", "/"], "cannot read /"),
    "no command of ddl": ("drainer", ["ddl"], "unknown command"),
    "an etcd of ddl": (
        "drainer",
        ["ddl", "list", "--sink=sqlite:///x.db", "--etcd-urls", "x"],
        "'x' is not host:port",
    ),
    "every IPv6 address": ("pump", ["--addr=[::]:8250"], "advertise-addr is '[::]:8250'"),
    "no downstream of ddl": (
        "drainer",
        ["ddl", "track", "7"],
        "penstock drainer ddl track needs sink",
    ),
    "no source to change": ("source", ["skip"], "changes a source, and none is named"),
    "no cluster to change": ("ctl", ["pause-pump", "p"], "changes a cluster, and none"),
    "a source's page": ("source", ["status", "--status-addr", "x"], "host:port"),
    "an upstream": ("penstock", ["verify", "--upstream=x", "--downstream=y"], "no URL"),
    "a log to dump": ("ctl", ["dump", "/nowhere"], "there is no /nowhere"),
    "a node's address": ("ctl", ["status", "--addr", "x"], "host:port"),
    "a CA of nodes": ("ctl", ["status", "--addr", NOWHERE, "--ssl-ca", "no"], "no: No such"),
}


@pytest.fixture
def here(capsys: pytest.CaptureFixture[str]) -> Iterator[Run]:
    before = signal.getsignal(signal.SIGHUP)

    def run_here(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        name = MODULES[program]
        main = importlib.import_module(name if program == "ctl" else f"{name}.__main__").main
        code = main(arguments)
        captured = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, code, captured.out, captured.err)

    yield run_here
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("what", MISTAKES)
def test_a_mistake_is_one_line_and_exit_code_two(what: str, here: Run) -> None:
    program, arguments, message = MISTAKES[what]
    assert message in assert_one_line(here(program, *arguments))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--log-file", "/nowhere/x"], "cannot write the log file"),
        (["--log-format", "xml"], "unknown log format 'xml'"),
        (["--log-level", "loud"], "unknown log level 'loud'"),
    ],
)
def test_logs_that_cannot_be_are_one_line_and_exit_code_two(
    arguments: Sequence[str], message: str
) -> None:
    assert message in assert_one_line(run("pump", *arguments))


@pytest.mark.parametrize("program", ["pump", "drainer"])
def test_a_data_dir_that_cannot_be_is_one_error_and_exit_code_two(
    program: str, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    for folder in ("/proc/nowhere", str(tmp_path / "file")):
        done = run(program, "--data-dir", folder, *NODE)
        lines = [line for line in done.stderr.splitlines() if " INFO " not in line]
        assert done.returncode == 2, done.stderr
        assert len(lines) == 1, done.stderr
        assert f"ERROR penstock.node.service: stopped: cannot use {folder}: " in lines[0]


@pytest.mark.parametrize(
    "arguments", [["pumps"], ["drainers"], ["status", "pump-1"], ["trigger-gc", "pump-1"]]
)
def test_an_etcd_that_is_away_is_named_and_worth_another_try(
    arguments: Sequence[str], here: Run
) -> None:
    line = assert_one_line(here("ctl", *arguments, "--etcd-urls", NOWHERE), code=1)
    assert NOWHERE in line


@pytest.mark.parametrize("lines", [1, 100_000])
def test_a_reader_that_goes_away_ends_a_program_quietly(lines: int) -> None:
    body = f"lambda: print('\\n'.join(['a line'] * {lines})) or 0"
    code = f"from penstock.node.command import run; raise SystemExit(run('some', {body}))"
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT / "proto",
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
            check=False,
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (CUT_OFF, "")


def test_a_statement_of_several_lines_is_one_line_of_an_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def body() -> int:
        raise NeedsOperator(
            "cannot follow 'CREATE TABLE t (\n  id INT)'",
            hint="replace it",
            code=Code.DDL_UNSUPPORTED,
        )

    assert command.run("some", body) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "some: cannot follow 'CREATE TABLE t (\\n  id INT)' (replace it) [PS-5002]"


def test_what_is_no_path_of_a_certificate_is_refused_with_a_hint() -> None:
    with pytest.raises(NeedsOperator, match="cannot read x: No such file"):
        Tls(ca="x").check()
    for wrong in (b"-----BEGIN", 5, ""):
        with pytest.raises(NeedsOperator, match="give the path of a PEM file"):
            Tls(ca=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("program", "variable", "near"),
    [
        ("pump", "PUMP_ETCD_URL", "PUMP_ETCD_URLS"),
        ("drainer", "DRAINER_APPLY_WORKER_COUNTS", "DRAINER_APPLY_WORKER_COUNT"),
        ("source", "MYSQL_SOURCE_SOURCE_PASSWRD", "MYSQL_SOURCE_SOURCE_PASSWORD"),
        ("ctl", "PENSTOCK_ETCD_URL", "PENSTOCK_ETCD_URLS"),
        ("penstock", "PENSTOCK_UPSTREAM_PASWORD", "PENSTOCK_UPSTREAM_PASSWORD"),
    ],
)
def test_a_mistyped_variable_is_refused_with_the_nearest_name(
    program: str, variable: str, near: str, here: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "x")
    arguments = {"ctl": ["pumps"], "penstock": ["verify", "--upstream=x", "--downstream=y"]}.get(
        program, []
    )
    line = assert_one_line(here(program, *arguments))
    assert f"unknown variable {variable} in the environment (did you mean {near}?" in line
