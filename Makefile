PYTHON ?= python3
BIN := .venv/bin
PROTOS := $(addprefix augury/v1/,common.proto kvcache.proto scheduler.proto worker.proto)

.PHONY: setup proto check test test-slow test-gpu sim serve up up-test bench bench-kv chaos

setup:
	$(PYTHON) deploy/bootstrap.py setup

proto: setup
	$(BIN)/python -m grpc_tools.protoc -I proto --python_out=proto --pyi_out=proto --grpc_python_out=proto \
		--mypy_grpc_out=proto $(PROTOS)

check:
	$(PYTHON) deploy/bootstrap.py check

test: setup
	$(BIN)/python -m pytest

# Thousands of texts with and without speculation, and a short `make chaos`: minutes.
test-slow: setup
	$(BIN)/python -m pytest -m slow

# Where there is an NVIDIA GPU, and nvcc for FlashInfer's kernels: what only that can show, then rates.
test-gpu: setup
	$(BIN)/python -m pip install --disable-pip-version-check --editable ".[worker-cuda]"
	$(BIN)/python -m pytest -m gpu tests/gpu
	$(BIN)/augury bench spec --set worker.device=cuda $(BENCH)

# make sim SEED=n replays one seed.
sim: setup
	$(BIN)/python -m tests.sim $(if $(SEED),--seed $(SEED))

# Kills and hangs processes of every service under load, and compares every text: 3 to 6 minutes. CHAOS holds options.
chaos: setup
	$(BIN)/augury chaos $(CHAOS)

serve:
	$(PYTHON) deploy/bootstrap.py serve

up:
	docker compose up --build

# Needs an engine, or root on Debian with the packages that check.sh names.
up-test:
	sh deploy/docker/check.sh

# The server must run already; BENCH holds further options.
bench: setup
	$(BIN)/augury bench serve $(BENCH)

# Beside the reference engine's KVCacheManager, in an environment of its own (2 GB; pip's settings as in bootstrap.py).
bench-kv: setup .venv-vllm/installed
	$(BIN)/augury bench kv $(BENCH)

.venv-vllm/installed: deploy/bench/kv_reference.txt
	$(PYTHON) -m venv --clear .venv-vllm
	.venv-vllm/bin/python -m pip install torch==2.13.0
	.venv-vllm/bin/python -m pip install --no-deps -r $<
	touch $@
