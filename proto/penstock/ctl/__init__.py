"""The programs of operators: `penstock`, which starts all others, `penstock ctl`, the console."""
