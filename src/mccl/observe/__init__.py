"""What a rank did and is doing: flight recorder, metrics, traces, and what dumps say together.

``subjects`` knows the groups of the process; ``record`` turns the engine's ring into PyTorch's
flight-recorder schema and ``dump`` writes it; ``dumps`` reads what several ranks wrote and
``findings`` says what it means; ``metrics``, ``prometheus`` and ``trace`` watch running jobs.
"""
