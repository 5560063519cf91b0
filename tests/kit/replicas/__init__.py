"""A log with its replicas, simulated: `pump.replication.protocol` under a seeded scheduler.

    world.py     machines, network, scheduler, and what must hold after each step
    disk.py      a data folder: what of it survives a crash
    store.py     etcd: swaps whose answers are lost or that come late, watches that lag
    switches.py   the rules of the protocol, each with a switch

`python -m tests.kit.replicas SEED` repeats one run and shows each step of it.
"""
