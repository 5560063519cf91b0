"""SQL: turns rows into statements; many rows by columns, few by row, and each change separately."""
