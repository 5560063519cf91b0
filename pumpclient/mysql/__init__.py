"""A MySQL or MariaDB server as a writer: a replica client, a relay log, and a translation."""
