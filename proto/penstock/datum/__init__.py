"""TiDB's encoding of values and rows, one row at a time (`rows`) or a column at a time
(`columnar`).

`values`, `decimals`, `times` and `jsonb` are the forms; `fields` of `rows` ties a
column's type to a form; its `defaults` knows what a column reads as when a row does not have it.
Only `columnar` imports numpy and Arrow, since a writer installs neither.
"""
