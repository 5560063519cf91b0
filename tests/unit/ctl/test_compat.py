"""penstock ctl as TiDB-Binlog's is called: every command and flag of it reaches one of ours."""

import pytest

from penstock.ctl.commands import main
from penstock.ctl.compat import COMMANDS, FLAGS, in_our_words
from penstock.errors import NeedsOperator

PD = "http://10.0.0.1:2379"
# What an operator types -> what is done. All of TiDB-Binlog's commands are here, and all its flags.
CALLS = {
    "-cmd pumps": "pumps --in-log-form",
    "-cmd=pumps": "pumps --in-log-form",
    "--cmd pumps": "pumps --in-log-form",
    f"-pd-urls={PD}": f"pumps --in-log-form --etcd-urls={PD}",
    f"-cmd drainers -pd-urls {PD}": f"drainers --in-log-form --etcd-urls={PD}",
    "-cmd pumps -show-offline-nodes": "pumps --in-log-form --show-offline-nodes",
    "-cmd pumps -show-offline-nodes=false": "pumps --in-log-form",
    "-cmd update-pump -node-id p -state paused": "update-pump --node-id=p --state=paused",
    f"-pd-urls {PD} -state offline -node-id d -cmd update-drainer": (
        f"update-drainer --etcd-urls={PD} --pd-address={PD} --state=offline --node-id=d"
    ),
    "-cmd pause-pump -node-id=p:1": "pause-pump --node-id=p:1",
    f"-cmd pause-drainer -pd-urls {PD} -node-id d": f"pause-drainer --etcd-urls={PD} --node-id=d",
    f"-cmd offline-pump -pd-urls {PD} -node-id p": (
        f"offline-pump --etcd-urls={PD} --pd-address={PD} --node-id=p"
    ),
    "-cmd offline-drainer -node-id d": "offline-drainer --node-id=d",
    "-cmd generate_meta": "generate_meta",
    f"-cmd generate_meta -pd-urls {PD} -data-dir d -time-zone Asia/Shanghai": (
        f"generate_meta --etcd-urls={PD} --pd-address={PD} --data-dir=d --time-zone=Asia/Shanghai"
    ),
    "-cmd encrypt -text s3cret": "encrypt --text=s3cret",
    "-cmd pumps -ssl-ca a -ssl-cert b -ssl-key c": (
        "pumps --in-log-form --ssl-ca=a --ssl-cert=b --ssl-key=c"
    ),
    "-cmd pumps -ssl-ca=": "pumps --in-log-form",
    "-V": "--version",
    "-cmd pumps -V": "--version",
    "-cmd pumps -h": "--help",
}


@pytest.mark.parametrize("written", CALLS)
def test_a_call_in_the_spelling_of_tidb_binlog_is_one_of_ours(written: str) -> None:
    call = in_our_words(written.split())
    assert call is not None
    assert call == (CALLS[written].split(), [])


def test_the_table_has_every_command_and_every_flag_of_tidb_binlog() -> None:
    words = " ".join(CALLS).replace("=", " ").split()
    assert {word.lstrip("-") for word in words if word.startswith("-")} == FLAGS - {"help"}
    assert set(COMMANDS) <= set(words)


def test_our_own_calls_are_left_as_they_are() -> None:
    for argv in ([], ["pumps"], ["status", "p", "-o", "json"], ["--help"], ["--version"], ["-h"]):
        assert in_our_words(argv) is None


def test_a_flag_that_means_nothing_to_a_command_is_said_to() -> None:
    call = in_our_words(["-cmd", "pumps", "-state", "online", "-node-id", "p"])
    assert call is not None
    assert call[0] == ["pumps", "--in-log-form"]
    assert call[1] == [
        "-state has no meaning for pumps: ignored",
        "-node-id has no meaning for pumps: ignored",
    ]


@pytest.mark.parametrize(
    ("written", "problem", "hint"),
    [
        ("-cmd pump", "-cmd pump is no command", "did you mean pumps?"),
        ("-cmd pumps -pd-url x", "no flag -pd-url", "-pd-urls"),
        ("-cmd pumps now", "'now' is no flag", "-cmd"),
        ("-cmd update-pump -node-id", "-node-id has no value", "-node-id="),
        ("-cmd pumps -show-offline-nodes=x", "neither true nor false", "true or false"),
    ],
)
def test_what_cannot_be_is_refused_with_a_hint(written: str, problem: str, hint: str) -> None:
    with pytest.raises(NeedsOperator) as refused:
        in_our_words(written.split())
    assert problem in refused.value.problem
    assert hint in refused.value.hint


def test_both_spellings_end_alike(capsys: pytest.CaptureFixture[str]) -> None:
    away = "127.0.0.1:1"
    assert main(["-cmd", "pause-pump", "-pd-urls", away]) == 2
    assert "no node is named (give a node id" in capsys.readouterr().err
    assert main(["-cmd", "pause-pump", "-node-id", "p", "-pd-urls", away]) == 1
    assert main(["-cmd", "bogus"]) == 2
    words = ["update-pump", "-node-id", "p", "-state", "sleepy", "-pd-urls", away]
    assert main(["-cmd", *words]) == 2
