"""SQL: rows into statements; columns of many, rows of few, and each change by itself."""
