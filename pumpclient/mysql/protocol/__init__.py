"""Replica protocol: session, dump commands, packets, acknowledgements, refusals.

packets.py           pure: commands and packets as bytes
refusals.py          pure: what a server's error means for an operator
address.py           where a server is, and a connection to it (PyMySQL: TLS, authentication)
server.py            what a server says of itself: identity, positions, GTID sets, files
stream.py            the events of a dump, watched for stalls
locate.py            where a GTID set or a point in time is in a server's files
prechecks.py         whether a server can be replicated from at all
"""
