"""A private server of S3, Versity S3 Gateway; its program is built by `make test-slow`'s set-up.

Each bucket is a folder, so that a test also sees the objects as files.
"""

import secrets
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.local.process import ServerProcess, built, free_port

START_S_MAX = 20.0


class S3Server(ServerProcess):
    """A server whose port and data stay the same over restarts."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.key, self.secret = "penstock", secrets.token_hex(16)
        self._address = ("127.0.0.1", free_port())
        self.url = f"http://127.0.0.1:{self._address[1]}"
        for name in ("data", "meta"):
            (home / name).mkdir(parents=True)
        command = [
            built("versitygw", "versitygw"), "--region", "us-east-1", "--quiet",
            "--port", f"127.0.0.1:{self._address[1]}",
            "posix", "--sidecar", str(home / "meta"), str(home / "data"),
        ]  # fmt: skip
        account = {"ROOT_ACCESS_KEY": self.key, "ROOT_SECRET_KEY": self.secret}
        super().__init__(command, log=home / "s3.log", environment=account)

    @property
    def variables(self) -> dict[str, str]:
        """The variables by which a client finds the server."""
        return {
            "AWS_ACCESS_KEY_ID": self.key, "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_REGION": "us-east-1", "AWS_ENDPOINT_URL": self.url,
        }  # fmt: skip

    def run(self) -> None:
        def answers() -> bool:
            with socket.create_connection(self._address, 1):
                return True

        self.start().until(answers, START_S_MAX)

    def add_bucket(self, name: str) -> Path:
        """Make a bucket, and return the folder in which its objects are."""
        folder = self.home / "data" / name
        folder.mkdir()
        return folder


@pytest.fixture(scope="module")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One server for a module, which the variables of this process name."""
    server = S3Server(tmp_path_factory.mktemp("s3"))
    server.run()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in server.variables.items():
            patch.setenv(name, value)
        yield server
    server.kill()


@pytest.fixture
def s3(s3_server: S3Server) -> S3Server:
    if not s3_server.is_running:
        s3_server.run()
    return s3_server
