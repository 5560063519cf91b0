"""Console: `penstock console` serves one page that shows a cluster, live.

    etcd, nodes, sources ── poller ──> Observation ──> ClusterState ──> fragments of HTML and SVG
                              │                            ^                    │
                              └── Chronicle (one hour) ────┘          web ── page, events, verbs

It is beside `binlogctl`, which it is for eyes: both ask etcd and the nodes with the same options,
and the few verbs that it offers are binlogctl's. What is seen is made a state, a state is made
markup, and both are pure: no clock, no socket. `poller` and `web` are the shell around them.

Whatever comes from outside (names of tables, errors, another version's JSON) may be anything: it is
read by `facts`, which never raises, and written by `markup`, which escapes all that is not markup.
"""
