"""The demo: a GroupNorm ResNet trained with DDP on several ranks of this machine.

Map of the room: ``settings`` (what to run), ``train`` (one rank's part, plain PyTorch), ``watch``
(what the network did meanwhile), ``show`` (progress and the report). ``mccl demo`` starts it all.
"""
