"""The replica protocol: session, dump commands, packets, acknowledgements, refusals.

packets.py           pure: commands and packets as bytes
refusals.py          pure: the meaning of a server's error for an operator
address.py           a server's address, and a connection to it (PyMySQL: TLS, authentication)
server.py            a server's own state, and whether it can be replicated from
stream.py            the events of a dump, watched for stalls; where to start a dump
"""
