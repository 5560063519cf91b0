-- What a source needs: to read the binlog, to load tables from one snapshot, and to name them.
GRANT REPLICATION SLAVE, REPLICATION CLIENT, SELECT, RELOAD ON *.* TO penstock@'%';
