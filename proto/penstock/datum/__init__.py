"""TiDB's encoding of values and rows, row by row (`rows`) or column by column (`columnar`).

`values`, `decimals`, `times` and `jsonb` are the encodings. In `rows`, `fields` chooses the
encoding of a column's type, and `defaults` the value of a column that is missing in a row. Only
`columnar` imports numpy and Arrow, since a writer installs neither.
"""
