PYTHON ?= python3
BIN := .venv/bin
PROTOS := $(addprefix augury/v1/,common.proto kvcache.proto scheduler.proto worker.proto)

.PHONY: setup proto check test sim serve up up-test bench

setup:
	$(PYTHON) deploy/bootstrap.py setup

proto: setup
	$(BIN)/python -m grpc_tools.protoc -I proto --python_out=proto --pyi_out=proto --grpc_python_out=proto \
		--mypy_grpc_out=proto $(PROTOS)

check:
	$(PYTHON) deploy/bootstrap.py check

test: setup
	$(BIN)/python -m pytest

# make sim SEED=n replays one seed.
sim: setup
	$(BIN)/python -m tests.sim $(if $(SEED),--seed $(SEED))

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
