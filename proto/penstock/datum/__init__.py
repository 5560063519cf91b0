"""TiDB's encoding of values and rows, by row (`rows`) or by column (`columns`).

`values`, `decimals`, `times` and `jsonb` are the forms; `field`, `ints` and `fields` tie a column's
type to a form; `defaults` knows what a column reads as when a row does not have it. Only `columns`
and what it uses import numpy and Arrow, since a writer installs neither.
"""
