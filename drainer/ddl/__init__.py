"""DDL: builds the schema at a start, and decides the downstream effect of each later DDL."""
