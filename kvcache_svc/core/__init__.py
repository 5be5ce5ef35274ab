"""What the KV service decides: plain synchronous Python."""
