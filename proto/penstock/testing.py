"""Testing: the promises of a sink as tests, for the package of a third party that provides one.

It imports the Drainer, as `penstock.stream` does, and pytest.
"""

import pytest

pytest.register_assert_rewrite("drainer.sink_contract")

from drainer.sink_contract import Seen, SinkContract  # noqa: E402

__all__ = ["Seen", "SinkContract"]
