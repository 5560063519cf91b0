"""The relay log: a server's binlog files, byte for byte, on this side.

    relay-dir/
      server-uuid.index                 one sub-directory a line, oldest first
      <uuid>.000001/  relay.meta  mysql-bin.000010  mysql-bin.000011
      <uuid>.000002/  relay.meta  mysql-bin.000001

A sub-directory has whole files of one server. Another server, or the same one after RESET MASTER
(its file of our file's name began with another FORMAT_DESCRIPTION), begins the next, at the
beginning of the file that the GTIDs lead to. So transactions that an earlier sub-directory has may
come again in the next: their reader knows them by their GTIDs. Source of the layout: the relay unit
of TiDB Data Migration, whose directories it can read.

* `RelayReceiver(root, address, options).run()` relays until `stop()`; `status()` says how far, and
  `growth` wakes readers of the same process.
* Data is synced before `relay.meta` speaks of it, at latest after `sync_interval_s`; with semi-sync
  before the server hears of it. `relay.meta` names the end of a complete transaction. Files run
  ahead of it.
* After a lost connection the file is cut to the end of its last complete transaction, and the same
  bytes come again: a reader in the same process may find the file shorter than it was, for a
  moment. `growth` reports the smaller end too.
* A damaged event is asked for once more; if it comes damaged again the receiver stops with the
  server's file and position. A full disk is waited for.
* Byte for byte with one exception: the mark "being written" in a file's first event is never sent
  by a server. A file that a crash of the server left open keeps it there and not here, as with
  `mariadb-binlog --raw`. An encrypted binlog is sent, and kept, in clear.
"""
