"""The relay log: a local copy of a server's binlog files, byte for byte.

    relay-dir/
      server-uuid.index                 one sub-directory a line, oldest first
      <uuid>.000001/  relay.meta  mysql-bin.000010  mysql-bin.000011
      <uuid>.000002/  relay.meta  mysql-bin.000001

A sub-directory has complete files of one server. Another server, or the same server after RESET
MASTER (its file of our file's name has another FORMAT_DESCRIPTION), starts the next sub-directory,
at the start of the file that the GTIDs lead to. So transactions of an earlier sub-directory may be
repeated in the next: their reader recognises them by their GTIDs. Source of the layout: the relay
unit of TiDB Data Migration, whose directories Penstock can read.

* `RelayReceiver(root, address, options).run()` relays until `stop()`; `status()` reports progress,
  and `growth` wakes readers of the same process.
* Data is synced before `relay.meta` refers to it, at latest after `sync_interval_s`; with
  semi-sync, before the server gets an acknowledgement. `relay.meta` names the end of a complete
  transaction. Files run ahead of it.
* After a lost connection the file is cut to the end of its last complete transaction, and the same
  bytes arrive again: a reader in the same process may briefly find the file shorter than before.
  `growth` also reports the smaller end.
* A damaged event is requested once more; if it is damaged again, the receiver stops with the
  server's file and position. The receiver waits while the disk is full.
* Byte for byte with one exception: a server never sends the mark "being written" in a file's first
  event. A file that a crash of the server left open keeps the mark there, but not here or
  with `mariadb-binlog --raw`. An encrypted binlog is sent, and stored, in clear.
"""
