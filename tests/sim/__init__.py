"""Seeded simulation of whole jobs: the real machines and codec, virtual time, scripted faults."""
