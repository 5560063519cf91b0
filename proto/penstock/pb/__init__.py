"""Generated from `proto/*.proto` by `make proto`; never edited by hand."""
