"""Benchmarks: every figure is raw samples in a JSON record first, tables and plots read it.

Map of the room:

* ``record``, ``machine``: what a result file holds. ``units``: sizes, rates and times in words.
* ``launch``: N rank processes, here or on a ``cluster`` of network namespaces.
* ``exact``, ``collectives``, ``sweep``, ``goodput``: one collective, its data, timing, ceiling.
* ``compare``, ``peers``, ``overlap``, ``train``, ``converge``, ``stress``: one experiment each.
* ``table``, ``report``: readers of the records.
"""
