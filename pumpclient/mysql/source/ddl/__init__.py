"""A server's DDL becomes the cluster's."""
