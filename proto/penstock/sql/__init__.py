"""Statements of our own on MySQL and MariaDB, and what a server says of them."""
