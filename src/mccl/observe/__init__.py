"""What a rank did and is doing: flight recorder, metrics, traces, and what dumps say together.

``subjects`` knows the groups of the process; ``record`` turns the engine's ring into PyTorch's
flight-recorder schema and ``dump`` writes it; ``dumps``, ``findings`` and ``explain`` read what
several ranks wrote; ``metrics``, ``prometheus`` and ``trace`` are for runs that go well.
"""
