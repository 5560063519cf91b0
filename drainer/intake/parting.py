"""When the merge may go on without a Pump that etcd calls offline: the judgement (pure).

    its last word is final, and we have all that it holds      it is let go
    its last word is final, and we lack some                   the Drainer stops, with the range
    no last word, and it takes part in the merge               it is waited for, whatever etcd says
    no last word, and it took no part since our checkpoint     let go, if we are as far as it was

A state in etcd can be anybody's, by a command or by hand, and a Pump that lives corrects it only at
its next heartbeat. What a Pump holds is its own word alone (`penstock.cluster.last_word`). The
original's Pumps leave none: of those, what they said in their last status has to do.
"""

from __future__ import annotations

from penstock.cluster.last_word import LastWord
from penstock.cluster.registry import NodeStatus
from penstock.errors import NeedsOperator


def may_part(
    status: NodeStatus, word: LastWord | None, received_ts: int, *, takes_part: bool
) -> bool:
    """Tell whether an offline Pump is to be let go; False: it is waited for.

    It was received up to `received_ts`. `takes_part` for a Pump of ours that is in the merge, or
    was at the checkpoint. Raises `NeedsOperator` when what is missing here is known.
    """
    up_to_ts = status.max_commit_ts
    if word is not None and word.is_final:
        up_to_ts = word.up_to_ts
    elif takes_part:
        return False
    if received_ts >= up_to_ts:
        return True
    raise NeedsOperator(
        f"Pump {status.node_id} is offline and holds binlogs up to {up_to_ts}, this Drainer has"
        f" them up to {received_ts}: those in ({received_ts}, {up_to_ts}] are missing here",
        hint=f"start {status.node_id} again with its data-dir, and then this Drainer, which goes on"
        " from there; or restore the downstream from a newer backup",
    )
