"""What an operator decides after a restore of etcd, as far as a chaos plays one."""

from __future__ import annotations

import re

import pytest

from penstock.cluster.log_entry import Copy, LogEntry
from pump.copies.claiming import _raise_put_back
from pump.replicas.chain import Chain, Link
from tests.chaos.restoring import decision, unserved
