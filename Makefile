# `make demo` and `make test` work as the first command after cloning; `make help` lists the rest.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MODEL := models/SmolLM2-135M-Instruct.Q4_1.gguf
PROTOS := $(sort $(wildcard protos/*/v1/*.proto))
PROTOC := $(BIN)/python -m grpc_tools.protoc -I.
GENERATED := build/generated
RELEASED = $(shell ls tests/protos/released/*.binpb | sort -V | tail -n 1)
INSTALLED := $(VENV)/.installed
OTHERS := .venv-clients

.DEFAULT_GOAL := help
.PHONY: help install kernels model demo test test-gpu test-chaos test-clients check lint types protos protos-fresh docs wheel clients clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

install: $(INSTALLED) ## .venv with everything that serving, tests and checks need

kernels: $(INSTALLED) ## the native CPU kernels, which a worker otherwise builds when it first starts
	@$(BIN)/python -m signalbox_kernels.build

model: $(MODEL) ## the demo model, SmolLM2-135M-Instruct (98 MB)

demo: $(INSTALLED) $(MODEL) ## starts router, scheduler and worker, and asks them a question
	@$(BIN)/signalbox demo $(MODEL)

test: $(INSTALLED) $(MODEL) ## the whole suite, on the CPU
	@echo "Running the tests"
	@OMP_WAIT_POLICY=passive $(BIN)/python -m pytest # spinning threads would starve the services

test-gpu: $(INSTALLED) ## on a machine with a CUDA device: its own tests, and the kernels' as compiled
	@$(BIN)/python -c 'import sys, torch; torch.cuda.is_available() or sys.exit( \
		f"make test-gpu needs a CUDA device, and PyTorch {torch.__version__} finds none; " \
		"on a machine that has one, install a PyTorch built for CUDA into $(VENV)")'
	@TRITON_INTERPRET=0 $(BIN)/python -m pytest tests/gpu tests/kernels/test_triton_ops.py \
		tests/kernels/test_triton_attention.py tests/gpu_worker/attention/test_triton_backend.py \
		tests/gpu_worker/sampling/test_triton_sampler.py

test-chaos: $(INSTALLED) ## kills, stops and cuts off real processes under load; CHAOS="--soak 30" seeks leaks
	@CHAOS_ABORTS=10000 $(BIN)/python -m pytest tests/chaos
	@$(BIN)/python -m tests.chaos $(CHAOS)

test-clients: $(INSTALLED) $(MODEL) $(OTHERS)/.installed ## clients of other projects against a live stack; CLIENTS=--write-docs
	@$(BIN)/python -m tests.third_party.run $(CLIENTS)

check: lint types protos-fresh test ## test, and ruff, mypy --strict, buf, fresh generated code

lint: $(INSTALLED) ## ruff, buf lint, and buf breaking against the last released contract
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/buf lint
	@$(BIN)/buf breaking --against $(RELEASED)

types: $(INSTALLED) ## mypy --strict
	@$(BIN)/mypy

protos: $(INSTALLED) ## generates the code beside the .proto files
	@$(PROTOC) --python_out=. --pyi_out=. --grpc_python_out=. $(PROTOS)

docs: $(INSTALLED) ## writes the tables of docs/ from the settings and the flags of vLLM
	@$(BIN)/python -m signalbox.settings.reference

protos-fresh: $(INSTALLED) ## fails if the committed generated code is not what protoc makes
	@rm -rf $(GENERATED) && mkdir -p $(GENERATED)
	@$(PROTOC) --python_out=$(GENERATED) --pyi_out=$(GENERATED) --grpc_python_out=$(GENERATED) \
		$(PROTOS)
	@cd $(GENERATED) && find . -name '*_pb2*' | while read -r file; do \
		diff -u "$(CURDIR)/$$file" "$$file" || exit 1; done \
		|| { echo "The generated code is stale; run make protos" >&2; exit 1; }

wheel: $(INSTALLED) ## dist/*.whl
	@rm -rf build/lib build/bdist.* dist/*.whl
	@$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .

clients: ## the examples in Node, Go and C++, whose toolchains clients/README.md names
	cd clients/node && npm install --no-audit --no-fund
	$(MAKE) -C clients/go
	$(MAKE) -C clients/cpp

clean: ## removes everything that make made, but the model
	rm -rf $(VENV) $(OTHERS) build dist *.egg-info kernels/signalbox_kernels/_build
	rm -rf $(OTHERS) tests/third_party/node_modules clients/node/node_modules clients/go/build clients/cpp/build
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Python 3.11 or later is needed; use make PYTHON=..." >&2; exit 1; }
	@echo "Making $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(INSTALLED): pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing into $(VENV) (the first time takes minutes)"
	@$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

# --no-deps: the file pins what each package pulls in, too.
$(OTHERS)/.installed: tests/third_party/requirements.txt tests/third_party/package-lock.json
	@echo "Installing the clients into $(OTHERS)"
	@$(PYTHON) -m venv $(OTHERS)
	@$(OTHERS)/bin/python -m pip install --disable-pip-version-check --quiet --no-deps \
		--only-binary :all: -r tests/third_party/requirements.txt
	@cd tests/third_party && npm ci --ignore-scripts --no-audit --no-fund --silent
	@touch $@

$(MODEL): | $(BIN)/python
	@$(BIN)/python scripts/fetch_model.py $@
