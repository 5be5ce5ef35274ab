"""The KV service: who holds which block of which worker."""
