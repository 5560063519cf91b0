"""Whole Pumps, simulated: real storages and shipping under a seeded scheduler, judged by a ledger.

    world.py      machines, an adversary, and what must hold
    tasks.py      the scheduler: threads of which one runs at a time, and a clock of its own
    machine.py    a disk in memory, the Pumps there, taking over
    pump.py       one process: the real `Storage`, `claim` and `Shipping`; what threads and an event
                  loop do in a Pump, in tasks
    copies.py     the real `ReplicaLog` of each copy, and the network
    etcd.py       swaps whose answers are lost or that come late, watches that lag
    writers.py    scripted transactions;  ledger.py  what must become of them
    drainer.py    the real merger
    switches.py   rules of shell and storage, each with a switch

`python -m tests.kit.simulation SEED` repeats one run and shows each step of it.
"""
