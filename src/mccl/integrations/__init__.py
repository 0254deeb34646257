"""Doors for training frameworks; each imports its framework, so nothing here imports them."""
