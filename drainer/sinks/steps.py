"""The steps of a downstream transaction, at which a test may end the Drainer."""

from __future__ import annotations

from penstock.failpoints import point

begun = point("drainer.transaction_begun")
"""The transaction is open and its place is checked; nothing has changed."""
changed = point("drainer.rows_changed")
"""All statements of a batch have run, or of one slice of a large transaction."""
stored = point("drainer.checkpoint_stored")
"""The checkpoint is stored in the transaction, which is still open."""
committed = point("drainer.transaction_committed")
"""The downstream has committed; the Drainer does not know yet."""
ddl_intended = point("drainer.ddl_intended")
"""The intent to run a DDL is on record."""
ddl_run = point("drainer.ddl_run")
"""The DDL has run; its checkpoint is not stored."""
