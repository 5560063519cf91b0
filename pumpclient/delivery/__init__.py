"""From a transaction's changes to acknowledged binlogs on a Pump."""
