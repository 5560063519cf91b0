"""The state that the nodes of a cluster share in etcd: nodes, DDL history, the schema fence."""
