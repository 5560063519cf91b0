"""The resolvers to choose from in `[resolver]`, and how one is made from the settings.

none  a transaction whose writer is silent is rolled back after `txn-timeout-s`
sql   transactions with an outbox key are asked about in the writer's database, never guessed;
      all others as with `none`
"""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.outbox import TABLE
from penstock.settings.setting import out_of_range, setting
from pump.resolver import Resolver


@dataclass(frozen=True, kw_only=True)
class ResolverConfig:
    """Whom a Pump asks about transactions whose writer went silent."""

    kind: str = setting("none", "none: time alone decides; sql: the writers' databases are asked")
    url: tuple[str, ...] = field(
        default=(),
        metadata={
            "help": "where the outbox is: mysql://user:password@host:port/schema or"
            " sqlite:///file; several: one name=URL each"
        },
    )
    table: str = setting(TABLE, "the outbox table, in every one of them")
    timeout_s: float = setting(3.0, "how long a question to a database may take")
    fence_after_s: float = setting(
        10.0, "a writer that is silent for longer, and not committed there, is rolled back"
    )

    def __post_init__(self) -> None:
        """Raise `NeedsOperator` for a value out of range."""
        if self.kind not in ("none", "sql"):
            raise out_of_range("resolver.kind", self.kind, "one of none and sql")
        if (self.kind == "sql") != bool(self.url):
            raise out_of_range("resolver.url", "", "kind sql needs one, kind none has none")
        for name in ("timeout_s", "fence_after_s"):
            if getattr(self, name) <= 0:
                raise out_of_range(f"resolver.{name}", getattr(self, name), "it must be above zero")


def open_resolver(config: ResolverConfig, otherwise: Resolver) -> Resolver:
    """Return the configured resolver; `otherwise` is asked where that has nothing to say.

    Raises `NeedsOperator` for a URL that cannot be right; nothing is connected yet.
    """
    if config.kind == "none":
        return otherwise
    from pump.resolvers.sql import SqlResolver, databases

    return SqlResolver(databases(config), otherwise, fence_after_s=config.fence_after_s)
