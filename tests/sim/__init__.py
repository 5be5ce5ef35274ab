"""A seeded simulation of the real scheduler and KV cores over virtual time (DESIGN §6, level 1).

Workers compute a hash of the KV slots they read, so that a stale, foreign or unverified slot changes the text; an
oracle knows the right text from tokens alone. ``python -m tests.sim`` runs seeds, ``--seed N`` replays one.
"""
