"""Tables in the making: what CREATE TABLE and ALTER TABLE do to one."""
