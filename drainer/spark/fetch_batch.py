"""Batches whose rows Spark's tasks fetch from the Pumps: who does it when, and the driver's part.

    planner: commit_ts, Pump, size ──> FetchBatch ── its unit, with the Pumps' addresses of now ──>
    a task: SQL and facts <── or that a Pump is away: the unit is made anew and given out again

The schema is taken when the batch begins, before a later DDL changes it, and packed once per
version. `Facts` are noted when the batch is committed, once, however often it was worked on.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from drainer.plan.filters import protected_schemas
from drainer.plan.planner import RowsStep
from drainer.schema.packed import Origin, pack
from drainer.schema.tracker import SchemaTracker
from drainer.settings.config import DrainerConfig
from drainer.task.fetch_unit import Away, Facts, FetchSettings, FetchUnit, Made, Slices, decode_made

if TYPE_CHECKING:
    from drainer.spark.coordinator import Catalog, Coordinator

log = logging.getLogger(__name__)

_RETRY_S = 1.0


def fetch_settings(config: DrainerConfig) -> FetchSettings | None:
    """Return what tasks need to fetch rows themselves, None when they are not to.

    A mode that was asked for and cannot be is named in the log.
    """
    spark, security = config.spark, config.security
    asked = spark.payloads == "executors"
    if spark.payloads == "driver" or (not asked and spark.master.startswith("local")):
        return None
    why = ""
    if config.relay.log_dir:
        why = "the relay log needs them here"
    elif config.apply.strategy == "statements":
        why = "strategy statements orders the changes here"
    elif security.ssl_ca and not asked:
        why = "executors would need the PEM files of [security]: set spark.payloads = executors"
        why += " where they have them at the same paths"
    if why:
        log.warning("payloads go through the driver: %s", why)
        return None
    log.info("executors fetch the payloads from the Pumps")
    pem = (security.ssl_ca, security.ssl_cert, security.ssl_key) if security.ssl_ca else None
    syncer = config.syncer
    return FetchSettings(
        filters=syncer.added_to(config.filter),
        lists=[syncer.lists()],
        protected=frozenset(protected_schemas(config)),
        source_id=config.source_id,
        channel_id=syncer.channel_id if syncer.loopback_control else None,
        pem=pem,
    )


@dataclass(slots=True)
class Outcome:
    """What the last task that worked on a batch saw."""

    facts: Facts = field(default_factory=Facts)


@dataclass(frozen=True, slots=True)
class FetchBatch:
    """In the place of a `Batch` where the rows are to be fetched."""

    batch_id: int
    slices: Slices
    catalog: asyncio.Task[Catalog]
    way: Fetching
    outcome: Outcome = field(default_factory=Outcome)
    displaces: bool = False

    async def by_unit(self, coordinator: Coordinator, dialect: str) -> Made:
        """Return the batch's SQL; wait for Pumps that are away as long as it takes.

        Raises what the coordinator does.
        """
        catalog = await asyncio.shield(self.catalog)
        while True:
            unit = self._unit(catalog[0], dialect)
            answers = await coordinator.run([unit.encode()], catalog)
            try:
                made, self.outcome.facts = decode_made(answers.pop())
            except Away as away:
                log.warning("batch %d waits: %s", self.batch_id, away)
                await asyncio.sleep(_RETRY_S)
                continue
            return made

    def _unit(self, catalog: int, dialect: str) -> FetchUnit:
        names = sorted(set(self.slices.pumps))
        places = {name: place for place, name in enumerate(names)}
        addresses = self.way.addresses()
        return FetchUnit(
            batch_id=self.batch_id,
            dialect=dialect,
            displaces=self.displaces,
            catalog=catalog,
            cluster_id=self.way.cluster_id,
            drainer_id=self.way.drainer_id,
            addresses=[addresses[name] for name in names],
            commit_ts=self.slices.commit_ts,
            owners=[places[name] for name in self.slices.pumps],
            ignored=self.slices.ignored,
        )

    def counted(self, step: RowsStep) -> RowsStep:
        """Return the step with its number of rows, and with what of them was left out."""
        facts = self.outcome.facts
        left_out = step.left_out + facts.left_out
        return replace(step, rows=facts.rows, slices=None, left_out=left_out)


class Fetching:
    """What all such batches of a Drainer's life have in common."""

    def __init__(
        self,
        cluster_id: int,
        drainer_id: str,
        addresses: Callable[[], Mapping[str, str]],
        schemas: SchemaTracker,
    ) -> None:
        """Wire; `addresses` tells where each Pump is now."""
        self.cluster_id = cluster_id
        self.drainer_id = drainer_id
        self.addresses = addresses
        self._schemas = schemas
        self._catalog: tuple[int, asyncio.Task[Catalog]] | None = None

    def begin(self, batch_id: int, slices: Slices) -> FetchBatch:
        """Return a batch that is read with the schema as it is now."""
        version = self._schemas.version
        if self._catalog is None or self._catalog[0] != version:
            packing = asyncio.to_thread(_packed, self._schemas.copy())
            self._catalog = version, asyncio.create_task(packing)
        return FetchBatch(batch_id, slices, self._catalog[1], self)


def _packed(schemas: SchemaTracker) -> Catalog:
    origin = Origin(
        cluster_id=0,
        commit_ts=0,
        schema_version=schemas.version,
        last_job_id=0,
        revision=0,
        overrides={},
    )
    data = pack(schemas, origin)
    return int.from_bytes(hashlib.sha256(data).digest()[:8], "little"), data
