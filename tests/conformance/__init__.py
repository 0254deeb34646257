"""PyTorch's own tests, run from the installed torch, on mccl beside Gloo.

``python -m tests.conformance --help`` says how. Nothing of PyTorch's is copied here: the test
program reads the installed file at run time.
"""
