"""Every bound of the system, named. Beyond one there is a clear error, never a silent cut."""

MAX_BODY_BYTES = 4 << 20
MAX_CHOICES = 128
MAX_PROMPTS = 128
MAX_STOP_STRINGS = 16
MAX_STOP_STRING_CHARS = 512
MAX_STOP_TOKEN_IDS = 64
MAX_LOGIT_BIAS = 1024
MAX_MESSAGES = 4096
MAX_ERROR_CHARS = 300

MAX_REQUESTS_PER_GATEWAY = 4096
"""Requests that one gateway process has open at the scheduler."""

MAX_WAITING = 8192
"""Requests queued at one scheduler; beyond it: server_overloaded."""

MAX_WORKERS = 256

MAX_MESSAGE_BYTES = 64 << 20
"""One gRPC message: a proposal with the keys of a 1 M-token prompt fits."""

MAX_REGISTRY_QUEUE = 200_000
"""Registry entries that wait for a slow or absent Redis; beyond it the pool is written anew once Redis is back."""

HEARTBEAT_SECONDS = 1.0

POOL_IDLE_SECONDS = 600.0
"""The KV service forgets a pool that nobody has used for so long; its scheduler, if it lives, opens it again."""

CONNECT_RETRY_SECONDS = (0.05, 0.5)
"""First and longest pause between attempts to reach another service."""
