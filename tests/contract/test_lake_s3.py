"""A lake in an object store keeps the promises of a lake on a disk; its server is a real one."""

from __future__ import annotations

import http.server
import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import polars
import pytest

from drainer.settings.targets import target_of
from drainer.sink_contract import CheckpointContract, EventContract, Output
from drainer.sinks import objects
from drainer.sinks.checkpoint import Checkpoint
from drainer.sinks.protocol import TableSink
from penstock.errors import NeedsOperator, Retryable
from tests.contract.test_event_sink import ChangesWorld, output_of
from tests.contract.test_lake_sink import Lake
from tests.kit.opened_sinks import open_event_sink, open_lake_sink
from tests.kit.plugin import path_with
from tests.kit.servers.fix_s3 import S3Server
from tests.kit.workloads.sink_stream import inserts

_numbers = itertools.count(1)


class ObjectLake(Lake):
    """A lake in a new bucket; the reader sees its objects as files."""

    def __init__(self, server: S3Server) -> None:
        self._bucket = f"lake-{next(_numbers)}"
        super().__init__(server.add_bucket(self._bucket) / "a/lake")

    @property
    def url(self) -> str:
        return f"delta+s3://{self._bucket}/a/lake?interval=0"

    def open(self, options: str = "", **more: Any) -> TableSink:
        how = {"cluster_id": 2**64 - 7, "retry_s_max": 20, **more}
        sink = open_lake_sink(f"{self.url}&{options}".rstrip("&"), **how)
        sink.use_tasks(self.ask)
        self.sinks.append(sink)
        return sink


class ObjectChanges(ChangesWorld):
    def __init__(self, server: S3Server) -> None:
        self._bucket = f"log-{next(_numbers)}"
        self._folder = server.add_bucket(self._bucket) / "lake"

    def open(self, cluster_id: int) -> Any:
        url = f"delta+s3://{self._bucket}/lake?mode=changes&interval=0"
        return open_event_sink(url, cluster_id=cluster_id)


@pytest.fixture
def lake(s3: S3Server) -> Iterator[ObjectLake]:
    made = ObjectLake(s3)
    yield made
    for sink in made.sinks:
        sink.close()


class TestMirror(CheckpointContract):
    @pytest.fixture
    def downstream(self, s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
        monkeypatch.setattr("drainer.sink_contract.CLUSTER", 2**64 - 7)
        made = ObjectLake(s3)
        yield made
        for sink in made.sinks:
            sink.close()


class TestChanges(CheckpointContract, EventContract):
    @pytest.fixture
    def downstream(self, s3: S3Server) -> Iterator[Output]:
        made = output_of(ObjectChanges(s3))
        yield made
        for sink in made.sinks:
            sink.close()


def test_a_client_of_s3_reads_the_rows_and_no_credential_is_anywhere(
    lake: ObjectLake, s3: S3Server, caplog: pytest.LogCaptureFixture
) -> None:
    sink = lake.begun()
    lake.put(sink, t=inserts((1, "a"), (2, "b")), u=inserts((1, "x")))
    lake.put(sink, t=[((1, "a"), (1, "A")), ((2, "b"), None)])
    options = {**s3.variables, "AWS_ALLOW_HTTP": "true"}
    uri = lake.url.removeprefix("delta+").partition("?")[0]
    assert polars.read_delta(f"{uri}/shop/t", storage_options=options).rows() == [(1, "A")]
    assert lake.rows() == [(1, "A")]
    assert not lake.asked, "tasks do not reach the bucket"
    written = b"".join(path.read_bytes() for path in lake.folder.rglob("*") if path.is_file())
    assert s3.secret.encode() not in written
    assert s3.secret not in caplog.text + repr(vars(target_of(lake.url)))


DDL: list[tuple[str, ...]] = [
    ("DROP TABLE t",),
    ("RENAME TABLE t TO x, u TO t, x TO u",),
    ("RENAME TABLE t TO moved", "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20))"),
    ("ALTER TABLE t RENAME COLUMN v TO w",),
    ("TRUNCATE TABLE t",),
    ("DROP DATABASE shop",),
]


class Crash(BaseException):
    """In the place of a kill: no one catches it."""


@pytest.mark.fault(
    "a run ends after each single object that the DDL of a lake in an object store moves",
    "the next run completes the DDL; all tables are as upstream's",
    cases="6 DDL, at each object",
)
@pytest.mark.parametrize("statements", DDL, ids=" ".join)
def test_a_ddl_that_ends_after_any_object_is_completed(
    statements: tuple[str, ...], s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for dies_at in itertools.count(1):
        passed = itertools.count(1)

        def moved(at: int = dies_at, passed: Iterator[int] = passed) -> None:
            if next(passed) == at:
                raise Crash

        made, has_died = ObjectLake(s3), False
        first = made.begun()
        made.put(first, t=inserts((1, "a")), u=inserts((7, "x"), (8, "y")))
        made.put(first, t=inserts((2, "b")))
        for sql in statements:
            for change in made.changes(sql):
                point = made.point()
                monkeypatch.setattr(objects, "object_moved", moved)
                sink: Any = first
                try:
                    sink.run_ddl(change, point, maybe_done=False)
                except Crash:
                    has_died = True
                    monkeypatch.setattr(objects, "object_moved", lambda: None)
                    first.close()
                    first = sink = made.open()
                    sink.load_checkpoint()
                    sink.run_ddl(change, point, maybe_done=True)
        monkeypatch.setattr(objects, "object_moved", lambda: None)
        check_after(made, statements[0])
        first.close()
        if not has_died:
            return


def check_after(lake: ObjectLake, sql: str) -> None:
    """Assert that the tables are as upstream's, and that nothing is left of a move."""
    t, u = [(1, "a"), (2, "b")], [(7, "x"), (8, "y")]
    wanted: dict[str, Any] = {
        DDL[0][0]: {"u": u}, DDL[1][0]: {"t": u, "u": t}, DDL[2][0]: {"moved": t, "t": [], "u": u},
        DDL[3][0]: {"t": t, "u": u}, DDL[4][0]: {"t": [], "u": u}, DDL[5][0]: {},
    }[sql]  # fmt: skip
    logs = lake.folder.glob("shop/*/_delta_log")
    found = {path.parent.name for path in logs if any(path.iterdir())}
    assert found - {"heap"} == set(wanted)
    assert {name: lake.rows(name) for name in wanted} == wanted
    assert not list(lake.folder.rglob(objects.MOVING))


def test_an_outage_is_waited_for_and_a_write_is_there_once(
    lake: ObjectLake, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = lake.begun()
    lake.put(sink, t=inserts((1, "a")))
    s3.kill()
    timer = threading.Timer(2.0, s3.run)
    timer.start()
    lake.put(sink, t=inserts((2, "b")))
    timer.join()
    assert lake.rows() == [(1, "a"), (2, "b")]
    brief = lake.open(retry_s_max=0.5)
    s3.kill()
    with pytest.raises(Retryable, match="s3://lake-"):
        brief.load_checkpoint()
    s3.run()


def test_a_bucket_or_an_account_that_is_wrong_is_named_at_once(
    lake: ObjectLake, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = open_lake_sink("delta+s3://no-such-bucket/lake", cluster_id=1, retry_s_max=20)
    with closing(nowhere), pytest.raises(NeedsOperator, match="no bucket 'no-such-bucket'"):
        nowhere.load_checkpoint()
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-secret")
    refused = lake.open()
    with pytest.raises(NeedsOperator, match="check the bucket and the account") as error:
        refused.load_checkpoint()
    assert "wrong-secret" not in str(error.value)


def test_a_commit_of_a_second_drainer_is_not_overwritten(lake: ObjectLake) -> None:
    """The first is stopped at the moment after it has compared the checkpoint."""
    first: Any = lake.begun()
    second: Any = lake.open()
    second.load_checkpoint()
    store: Callable[[str], None] = first._store

    def late(text: str) -> None:
        first._store = store
        lake.add(second, 5)
        store(text)

    first._store = late
    with pytest.raises(NeedsOperator, match="another Drainer"):
        first.save_checkpoint(Checkpoint(lake.ts + 10, 2))
    assert lake.ids() == [5]


class Careless(http.server.BaseHTTPRequestHandler):
    """A store that answers each request with success, whatever the condition is."""

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("etag", '"1"')
        self.send_header("content-length", "0")
        self.end_headers()

    def do_GET(self) -> None:
        body = b"<ListBucketResult><KeyCount>0</KeyCount></ListBucketResult>"
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Print nothing."""


def test_a_store_that_ignores_conditions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Careless) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}",
            "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "us-east-1",
        }.items():  # fmt: skip
            monkeypatch.setenv(name, value)
        sink = open_lake_sink("delta+s3://bucket/lake", cluster_id=1, retry_s_max=5)
        with closing(sink), pytest.raises(NeedsOperator, match="ignores If-None-Match"):
            sink.load_checkpoint()
        server.shutdown()


def test_an_address_without_a_bucket_is_refused() -> None:
    for url in ("delta+s3:///lake", "delta+s3://bucket", "delta+s3://Bu_cket/x", "delta+s3:lake"):
        with pytest.raises(NeedsOperator, match="names no bucket or folder"):
            target_of(url)
    target = target_of("delta+s3://bucket/a%20b")
    assert (target.label, target.local) == ("delta+s3 bucket/a b", None)


def test_folders_of_a_lake_need_no_library_of_s3(tmp_path: Path) -> None:
    """`obstore` is in an extra of its own."""
    program = (
        "import sys; sys.modules['obstore'] = None\n"
        "from drainer.sinks.opening import open_sink\n"
        f"open_sink('delta://{tmp_path}/lake', cluster_id=1).load_checkpoint()\n"
        "open_sink('delta+s3://bucket/lake', cluster_id=1)\n"
    )
    environment = {**os.environ, "PYTHONPATH": path_with()}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert (tmp_path / "lake").is_dir()
    assert "obstore" in done.stderr.splitlines()[-1]
