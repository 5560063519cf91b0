"""Penstock for applications: write transactions and DDL into a cluster of Pumps.

This is the published interface; what is not named in `__all__` may change any day.
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
