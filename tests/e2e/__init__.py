"""Whole systems: real models, real sockets, real processes."""
