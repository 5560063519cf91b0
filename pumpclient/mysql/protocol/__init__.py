"""Replica protocol: session, dump commands, packets, acknowledgements, refusals.

packets.py           pure: commands and packets as bytes
refusals.py          pure: what a server's error means for an operator
address.py           where a server is, and a connection to it (PyMySQL: TLS, authentication)
server.py            what a server says of itself, and whether it can be replicated from
stream.py            the events of a dump, watched for stalls; where to start one
"""
