"""The relay log: a server's binlog files, byte for byte, on this side.

    relay-dir/
      server-uuid.index                 one sub-directory a line, oldest first
      <uuid>.000001/  relay.meta  mysql-bin.000010  mysql-bin.000011
      <uuid>.000002/  relay.meta  mysql-bin.000001

A sub-directory is one server's run of files. Another server, or the same one after RESET MASTER,
begins the next. Source of the layout: the relay unit of TiDB Data Migration, whose directories it
can read.
"""
