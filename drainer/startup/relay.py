"""The relay log's place in the pipeline, as the settings ask for it."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack

from drainer.relay_log.stage import NoRelay, Relay, RelayStage
from drainer.sinks.checkpoint import Checkpoint
from drainer.startup.parts import Parts
from drainer.startup.schema_start import Followed

log = logging.getLogger(__name__)


async def relay_stage(
    parts: Parts, checkpoint: Checkpoint, followed: Followed, stack: AsyncExitStack
) -> Relay:
    """Return the stage, going on after the checkpoint, for a Drainer that has its upstream."""
    relay_log = parts.relay_log
    if relay_log is None:
        return NoRelay()
    await asyncio.to_thread(relay_log.start, parts.cluster_id, checkpoint.commit_ts, followed.jobs)
    stage = RelayStage(relay_log)
    stack.push_async_callback(stage.close)
    log.info("the relay log in %s goes on after %d", relay_log.folder, relay_log.last_ts)
    return stage
