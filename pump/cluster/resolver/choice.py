"""The resolver that the settings name."""

from __future__ import annotations

from pump.cluster.resolver.resolving import Resolver
from pump.config import ResolverConfig


def open_resolver(config: ResolverConfig, otherwise: Resolver) -> Resolver:
    """Return the configured resolver; `otherwise` is asked where that has nothing to say.

    Raises `NeedsOperator` for a URL that cannot be right; nothing is connected yet.
    """
    if config.kind == "none":
        return otherwise
    from pump.cluster.resolver.sql import SqlResolver, databases

    return SqlResolver(databases(config), otherwise, fence_after_s=config.fence_after_s)
