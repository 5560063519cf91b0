"""Security: TLS, certificates, roles and passwords between nodes, clients and databases."""
