"""Builds tables: executes CREATE TABLE and ALTER TABLE on table definitions."""
