"""Writers: how binlogs get into the Pumps."""
