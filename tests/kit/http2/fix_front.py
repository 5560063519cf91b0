"""Processes that serve tests by our own gRPC server; ended after the test."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.http2.front_process import FrontProcess
from tests.kit.servers.authority import Authority, Pair


@pytest.fixture
def front_factory(tmp_path: Path) -> Iterator[Callable[..., FrontProcess]]:
    """Make servers: `front_factory(pair=None, **limits)`."""
    made: list[FrontProcess] = []

    def make(**settings: Any) -> FrontProcess:
        made.append(FrontProcess(tmp_path / f"front-{len(made)}.log", **settings))
        return made[-1].start()

    yield make
    for front in made:
        front.kill()


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FrontProcess]:
    """A server with the default limits, for all tests of a file one after the other."""
    front = FrontProcess(tmp_path_factory.mktemp("front") / "front.log").start()
    yield front
    front.kill()


@pytest.fixture(scope="module")
def tls_front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FrontProcess, Pair]]:
    home = tmp_path_factory.mktemp("tls-front")
    pair = Authority(home).issue("server")
    front = FrontProcess(home / "front.log", pair).start()
    yield front, pair
    front.kill()
