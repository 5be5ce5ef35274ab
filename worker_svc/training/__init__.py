"""Trains MTP modules: for SmolLM2 by self-distillation, and for a tiny story model jointly from scratch."""
