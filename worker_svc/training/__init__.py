"""Trains MTP modules: for SmolLM2 by self-distillation, and for a tiny story model jointly from scratch.

A recipe for SmolLM2's modules, each line behind ``python -m worker_svc.training``. The committed ones were made by it,
except that the fourth line was several runs while the first part's text grew:

    generate --part train --prompts 1920
    generate --part varied --prompts 2368
    generate --part evaluation --prompts 80
    train --parts train --out first
    train --parts varied --solo-epochs 0 --epochs 1 --learning-rate 6e-4 --start-from first --out second
    train --parts varied --solo-epochs 0 --epochs 1 --learning-rate 4e-4 --start-from second --out third
    evaluate --out third

``run.pt`` in the working folder belongs to one run: delete it between two of them.
"""
