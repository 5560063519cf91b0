"""A Java beside the test, whose classes py4j reaches: readers of outputs that run on no Python."""

import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from drainer.spark.jvm import use_java
from penstock.local.kafka import jars_of


class JavaProcess:
    """A Java with the jars of a list of `deploy/jars.sh`; use it in a `with`."""

    def __init__(self, folder: Path, jars: str, *options: str) -> None:
        """`folder` is for what the Java needs, `options` are its own, such as -Xmx128m."""
        spark = find_spec("pyspark")
        assert spark is not None
        assert spark.origin is not None
        (py4j,) = Path(spark.origin).parent.glob("jars/py4j-*.jar")
        port, token = launch_gateway(
            jarpath=str(py4j),
            classpath=f"{jars_of(jars)}/*",
            javaopts=["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *options],
            java_path=str(use_java(folder) / "bin" / "java"),
            die_on_exit=True,
            enable_auth=True,
            redirect_stderr=subprocess.DEVNULL,
        )
        self._gateway = JavaGateway(
            gateway_parameters=GatewayParameters(port=port, auth_token=token)
        )
        self.jvm: Any = self._gateway.jvm

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._gateway.shutdown()
