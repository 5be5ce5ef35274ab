"""`python -m kvcache_svc`: this service as a process of its own."""

import sys

from augury import process
from kvcache_svc.app import start

if __name__ == "__main__":
    sys.exit(process.main("kvcache_svc", start))
