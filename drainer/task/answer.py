"""The answer to a work unit: its statements."""

from __future__ import annotations

from drainer.task.sql.generate import generate
from drainer.task.sql.row_statements import row_statements
from drainer.task.work_unit import Op, WorkUnit


def answer(payload: bytes) -> bytes:
    """Return the encoded statements for an encoded WorkUnit; a pure function.

    They are `RowStatements` when its ops are EACH or SAFE, else `Statements`.
    """
    unit = WorkUnit.decode(payload)
    if len(unit.rows) and unit.rows.column("op")[0].as_py() in (Op.EACH, Op.SAFE):
        return row_statements(unit).encode()
    return generate(unit).encode()
