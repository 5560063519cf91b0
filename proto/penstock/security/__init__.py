"""Who may talk to whom: TLS, certificates, names and passwords."""
