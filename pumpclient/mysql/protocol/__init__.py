"""The replica protocol: session, dump commands, packets, acknowledgements, refusals.

address.py           a server's address, a connection to it (PyMySQL: TLS, authentication), and the
                     meaning of a server's error for an operator
server.py            a server's own state, and whether it can be replicated from
stream.py            commands and packets as bytes; the events of a dump, watched for stalls
"""
