"""For tests of programs that use MCCL: faults on purpose, and storms of random ones, strangers.

``faults`` lets one rank die, stop, slow down, or lose, reset or corrupt a connection at a chosen
collective and byte; ``storm`` runs many seeded random faults and counts what came of them;
``strangers`` knocks at the doors of a job while it trains.
"""
