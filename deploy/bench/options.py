"""Values that the benchmarks take on the command line, checked as argparse wants it."""

import argparse


def positive(text: str) -> int:
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def levels(text: str) -> list[int]:
    """``1,8,32``"""
    return [positive(part) for part in text.split(",")]


def share(text: str) -> float:
    if not 0 <= (value := float(text)) <= 1:
        raise argparse.ArgumentTypeError("must be between 0 and 1")
    return value
