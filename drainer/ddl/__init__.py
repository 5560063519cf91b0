"""DDL: the schema that a start begins with, and what becomes downstream of each DDL after it."""
