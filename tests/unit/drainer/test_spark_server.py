"""The end of Spark's JVM is no error of its connections; any other one is in the log."""

import socket

import pytest
from pyspark import accumulators

from drainer.spark import job
from tests.kit.wait import eventually


def test_a_connection_that_ends_prints_nothing_and_one_with_a_wrong_token_is_logged(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    job._import_spark()
    server = accumulators._start_update_server("token", is_unix_domain_sock=False)
    try:
        for said in (b"token", b"wrong"):
            with socket.create_connection(server.server_address) as connection:
                connection.sendall(said)
        eventually(lambda: "token to the AccumulatorServer is not correct" in caplog.text, 60)
    finally:
        server.shutdown()
    assert caplog.text.count("could not be read") == 1
    assert "Traceback" not in capfd.readouterr().err
