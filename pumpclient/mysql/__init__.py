"""Makes a MySQL or MariaDB server a writer: a replica client, a relay log, and a translation."""
