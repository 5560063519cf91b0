"""Generated from `proto/etcd/*.proto` by `make proto`; never edited by hand."""
