"""The replica protocol: session, dump commands, packets, acknowledgements, refusals.

server.py            a server's address, connections to it (PyMySQL), the meaning of its errors
                     for an operator, its state, and whether it can be replicated from
stream.py            commands and packets as bytes; the events of a dump, watched for stalls
"""
