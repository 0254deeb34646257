"""Tests of the door to the native engine."""
