"""Translates a server's DDL to the cluster's."""
