"""What the scheduler decides: plain synchronous Python."""
