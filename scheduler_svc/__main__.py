"""`python -m scheduler_svc`: this service as a process of its own."""

import sys

from augury import process
from scheduler_svc.app import start

if __name__ == "__main__":
    sys.exit(process.main("scheduler_svc", start))
