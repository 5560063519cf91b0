"""What the nodes of a cluster share in etcd: who is there, DDL history, the fence."""
