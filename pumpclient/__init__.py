"""Penstock for applications: write transactions and DDL into a cluster of Pumps.

`__all__` is the published interface; all other names may change at any time.
"""

from penstock.errors import Corrupt, Malformed, NeedsOperator, PenstockError, Retryable
from penstock.wire.binlog import Binlog, BinlogType, Origin
from pumpclient.client import PumpClient
from pumpclient.errors import NoPump, OutcomeUnknown
from pumpclient.options import Options, Tls
from pumpclient.transaction import Transaction

__all__ = [
    "Binlog",
    "BinlogType",
    "Corrupt",
    "Malformed",
    "NeedsOperator",
    "NoPump",
    "Options",
    "Origin",
    "OutcomeUnknown",
    "PenstockError",
    "PumpClient",
    "Retryable",
    "Tls",
    "Transaction",
]
