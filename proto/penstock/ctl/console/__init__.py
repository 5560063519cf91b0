"""Console: `penstock console` serves one page that shows a cluster, live.

    etcd, nodes, sources ── poller ──> Observation ──> ClusterState ──> fragments of HTML and SVG
                              │                            ^                    │
                              └── Chronicle (one hour) ────┘          web ── page, events, verbs

It is the visual counterpart of `penstock ctl`: both ask etcd and the nodes with the same options,
and the few verbs that it offers are penstock ctl's. An observation becomes a state, a state becomes
markup, and both steps are pure: no clock, no socket. `poller` and `web` are the shell around them.

All external input (names of tables, errors, another version's JSON) is untrusted: it is read by
`observation`, which never raises, and written by `page`, whose templates escape everything.
"""
