"""The Drainer: all Pumps, one order, once, into one downstream."""
