# `make demo` and `make test` work as the first command after cloning; `make help` lists the rest.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MODEL := models/SmolLM2-135M-Instruct.Q4_1.gguf
PROTOS := $(sort $(wildcard protos/signalbox_protos/*/v1/*.proto))
PROTOC := $(BIN)/python -m grpc_tools.protoc -Iprotos
GENERATED := build/generated
RELEASED = $(shell ls tests/protos/released/*.binpb | sort -V | tail -n 1)
INSTALLED := $(VENV)/.installed
SERVES := $(VENV)/.serves
OTHERS := .venv-clients
DOCS_VENV := .venv-docs
WHEELS_VENV := .venv-wheels
JOBS ?= $(shell test $$(nproc) -gt 1 && echo 2 || echo 0)
FAST := $(wildcard tests/test_*.py) $(addprefix tests/,contract gpu_worker kernels protos rpc scheduler_svc) \
	$(addprefix tests/router/,parsers prompt requests schedulers) \
	$(addprefix tests/signalbox/,bench client settings)
TRITON ?= 3.6.0
COMPILE_TESTS := tests/kernels/triton/test_compile.py tests/kernels/triton/test_keys.py tests/gpu_worker/runner/test_warm_up.py
NATIVE := tests/kernels/native tests/gpu_worker/runner/native
KERNEL_TESTS = $(shell grep -rl --include='test_*.py' triton_device tests)
CLIENT_ENVIRONMENTS := $(patsubst tests/third_party/environments/%.txt,$(OTHERS)/%/.installed, \
	$(filter-out %/console.txt,$(wildcard tests/third_party/environments/*.txt)))

.DEFAULT_GOAL := help
.PHONY: help install kernels model demo test test-system test-docs test-fast test-alone test-faults test-gpu test-triton test-ray test-chaos test-clients test-console test-agents test-templates check lint types protos protos-fresh sync-client docs wheels test-wheels clients client-ts clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

install: $(INSTALLED) ## .venv with everything that serving, tests and checks need

kernels: $(INSTALLED) ## the native CPU kernels of all instruction sets; a worker otherwise builds its own when it first starts
	@$(BIN)/python -m signalbox_kernels.build

model: $(MODEL) ## the demo model, SmolLM2-135M-Instruct (98 MB)

demo: $(SERVES) $(MODEL) ## installs what serving on a CPU needs, starts router, scheduler and worker, and asks them a question
	@$(BIN)/signalbox demo $(MODEL) --dtype int16

# The kernels of all sets of this machine are built before, since a test's time is limited. Groups
# start in the order of the folders, not the ones with most tests first. What took longest is listed.
TEST = $(BIN)/python -c 'from tests.native_kernels import available_isas; available_isas()' 2>/dev/null || true; \
	$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup --no-loadscope-reorder --durations 15

test: $(INSTALLED) $(MODEL) ## the suite, on the CPU; in two processes, or in one with JOBS=0
	@echo "Running the native tests, where PyTorch and transformers cannot be imported"
	@$(TEST) -p tests.without_pytorch -m "not (alone or pages or system)" $(NATIVE)
	@echo "Running the other tests"
	@$(TEST) -m "not (alone or pages or system)" $(NATIVE:%=--ignore=%)

test-system: $(INSTALLED) $(MODEL) ## the tests that serve the demo model, or start, attack and kill services as processes
	@echo "Running the tests of the system"
	@$(TEST) -m "system and not alone" --ignore tests/packaging/test_platform_wheels.py

test-docs: $(INSTALLED) $(MODEL) ## runs the commands and programs of README.md and docs/
	@echo "Running the pages"
	@$(TEST) -m pages tests/docs

test-fast: $(INSTALLED) ## what to run while working; without the slow, system, integration, LLM, and what the router does with HTTP, parameters and tokenizers
	@$(TEST) -m "not (alone or system or slow)" $(FAST)

test-alone: $(INSTALLED) ## attacks with a clock, repeated, and without their bounds; on an idle machine
	@$(BIN)/python -m pytest -m alone tests/hostile

test-faults: $(INSTALLED) ## plants faults of the history, one at a time in a copy: their tests have to fail; FAULTS="NAME NAME"
	@$(BIN)/python -m tests.planted_faults $(FAULTS)

test-gpu: $(INSTALLED) ## on a machine with a CUDA device: its own tests, and the kernels' as compiled
	@$(BIN)/python -c 'import sys, torch; torch.cuda.is_available() or sys.exit( \
		f"make test-gpu needs a CUDA device, and PyTorch {torch.__version__} finds none; " \
		"on a machine that has one, install a PyTorch built for CUDA into $(VENV)")'
	@TRITON_INTERPRET=0 $(BIN)/python -m pytest tests/gpu $(KERNEL_TESTS)

test-triton: $(INSTALLED) ## compiles the GPU kernels with another Triton and its own ptxas; TRITON=3.6.0
	@$(BIN)/python -m pip install --quiet --no-deps --upgrade --target build/triton-$(TRITON) triton==$(TRITON)
	@PYTHONPATH=build/triton-$(TRITON) $(BIN)/python -c 'import sys, triton; sys.exit(triton.__version__ != "$(TRITON)")'
	@PYTHONPATH=build/triton-$(TRITON) $(TEST) $(COMPILE_TESTS)

test-ray: $(INSTALLED) ## workers on Ray clusters, which this machine runs
	@$(BIN)/python -m pip install --quiet "ray>=2.60"
	@$(BIN)/python -m pytest --durations 15 tests/integration/placement/test_*ray*.py

test-chaos: $(INSTALLED) ## kills, stops and cuts off real processes under load; CHAOS="--soak 30" seeks leaks
	@CHAOS_ABORTS=10000 $(BIN)/python -m pytest tests/chaos
	@$(BIN)/python -m tests.chaos $(CHAOS)

test-clients: $(INSTALLED) $(MODEL) $(OTHERS)/.installed ## clients of other projects against a live stack; CLIENTS=--write-docs
	@$(BIN)/python -m tests.third_party.run $(CLIENTS)

test-console: $(INSTALLED) $(MODEL) $(OTHERS)/console/.installed tests/console/node_modules/.installed ## the console in Chromium, as a person uses it; SCREENSHOTS=FOLDER keeps pictures of its views
	@SIGNALBOX_TEST_EVENT_S=60 $(OTHERS)/console/bin/python -m pytest --timeout 110 $(SCREENSHOTS:%=--screenshots %) tests/console

test-agents: $(INSTALLED) tests/agents/node_modules/.installed ## command lines of agents, where there is no network; AGENTS="PACKAGE PACKAGE"
	@unshare --net --map-root-user sh -c 'ip link set lo up; exec $(BIN)/python -m tests.agents.run $(AGENTS)'

test-templates: $(INSTALLED) ## tool formats against the published chat templates of their models, and BFCL's answers; tokenizers against llama.cpp's; downloads 79 MB
	@$(BIN)/python -m pip download --quiet --no-deps --no-binary llama-cpp-python --dest build \
		-r tests/router/parsers/templates.txt
	@TEMPLATES=$$(ls build/llama_cpp_python-*.tar.gz) BFCL=$$(ls build/bfcl_eval-*.whl) $(BIN)/python -m pytest \
		tests/router/parsers/test_published_templates.py tests/router/parsers/test_bfcl_answers.py \
		tests/gpu_worker/files/checkpoints/test_published_vocabularies.py

check: lint types protos-fresh test test-system test-docs ## test, test-system and test-docs, ruff, mypy --strict, buf, fresh generated code

lint: $(INSTALLED) ## ruff, buf lint, and buf breaking against the last released contract
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/buf lint
	@$(BIN)/buf breaking --against $(RELEASED)

types: $(INSTALLED) ## mypy --strict
	@$(BIN)/mypy

protos: $(INSTALLED) ## generates the code beside the .proto files
	@$(PROTOC) --python_out=protos --pyi_out=protos --grpc_python_out=protos $(PROTOS)

sync-client: $(INSTALLED) ## makes the Python client that waits of the one for asyncio
	@$(BIN)/python -m scripts.sync_client

docs: $(SERVES) $(DOCS_VENV)/.installed ## writes the generated pages of docs/, and builds the site in build/site
	@$(BIN)/python -m signalbox.settings.flags.reference
	@$(BIN)/python -m scripts.cli_reference
	@$(BIN)/python -m scripts.foreign_fields_reference
	@$(BIN)/python -m scripts.models_reference
	@NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build --strict

protos-fresh: $(INSTALLED) ## fails if the committed generated code is not what protoc makes
	@rm -rf $(GENERATED) && mkdir -p $(GENERATED)
	@$(PROTOC) --python_out=$(GENERATED) --pyi_out=$(GENERATED) --grpc_python_out=$(GENERATED) \
		$(PROTOS)
	@cd $(GENERATED) && find . -name '*_pb2*' | while read -r file; do \
		diff -u "$(CURDIR)/protos/$$file" "$$file" || exit 1; done \
		|| { echo "The generated code is stale; run make protos" >&2; exit 1; }

wheels: $(WHEELS_VENV)/.installed ## dist/: an sdist, and wheels with the compiled kernels of x86-64 and of Arm
	@$(WHEELS_VENV)/bin/python scripts/build_wheels.py

test-wheels: $(INSTALLED) $(MODEL) wheels ## wheels with compiled kernels, where no compiler is; in a bare system if root has debootstrap
	@$(BIN)/python -m pytest --durations 15 -m system tests/packaging/test_platform_wheels.py

clients: client-ts ## the examples in Node, Go and C++, whose toolchains clients/README.md names
	cd clients/node && npm install --no-audit --no-fund
	$(MAKE) -C clients/go
	$(MAKE) -C clients/cpp

client-ts: $(INSTALLED) ## the package for browsers and Node, generated from the protos: clients/typescript/signalbox-client-VERSION.tgz
	cd clients/typescript && npm ci --ignore-scripts --no-audit --no-fund && mkdir -p src/gen
	$(PROTOC) -Iclients --plugin=protoc-gen-es=clients/typescript/node_modules/.bin/protoc-gen-es \
		--es_out=clients/typescript/src/gen --es_opt=target=ts,import_extension=js \
		signalbox_protos/inference/v1/inference.proto error_details.proto
	cd clients/typescript && npm run build && npm pack

clean: ## removes everything that make made, but the model
	rm -rf $(VENV) $(OTHERS) $(DOCS_VENV) $(WHEELS_VENV) build dist *.egg-info kernels/signalbox_kernels/_build
	rm -rf $(OTHERS) $(addprefix tests/,third_party/node_modules agents/node_modules console/node_modules) clients/node/node_modules clients/go/build clients/cpp/build
	rm -rf $(addprefix clients/typescript/,node_modules dist src/gen *.tgz)
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Python 3.11 or later is needed; use make PYTHON=..." >&2; exit 1; }
	@echo "Making $(VENV)"
	@$(PYTHON) -m venv $(VENV)

# Folders by name: pip's own finder is asked only after a folder that is called signalbox, as this one
# may be for a program that runs beside it.
FIND_CHECKOUT = $(BIN)/python -c 'import pathlib, sysconfig, tomllib; \
	tools = tomllib.loads(pathlib.Path("pyproject.toml").read_text())["tool"]; \
	pathlib.Path(sysconfig.get_path("purelib"), "signalbox.pth").write_text( \
	"".join(f"{pathlib.Path(one).resolve()}\n" for one in tools["mypy"]["mypy_path"]))'

$(INSTALLED): pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing into $(VENV) (the first time takes minutes)"
	@$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@$(FIND_CHECKOUT)
	@touch $@ $(SERVES)

# Serving models that run natively: no PyTorch, and nothing for development.
$(SERVES): pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing into $(VENV)"
	@$(BIN)/python -m pip install --disable-pip-version-check --quiet -c constraints.txt -e .
	@$(FIND_CHECKOUT)
	@touch $@

# Only what the extra `docs` names: the site needs none of what serving needs.
$(DOCS_VENV)/.installed: pyproject.toml constraints.txt
	@echo "Installing into $(DOCS_VENV)"
	@$(PYTHON) -m venv $(DOCS_VENV)
	@$(DOCS_VENV)/bin/python -c 'import tomllib; \
		print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"], sep="\n")' \
		> $(DOCS_VENV)/requirements.txt
	@$(DOCS_VENV)/bin/python -m pip install --disable-pip-version-check --quiet -c constraints.txt \
		-r $(DOCS_VENV)/requirements.txt
	@touch $@

$(WHEELS_VENV)/.installed: constraints.txt
	@echo "Installing into $(WHEELS_VENV)"
	@$(PYTHON) -m venv $(WHEELS_VENV)
	@$(WHEELS_VENV)/bin/python -m pip install --disable-pip-version-check --quiet -c constraints.txt setuptools ziglang
	@touch $@

$(OTHERS)/.installed: $(CLIENT_ENVIRONMENTS) tests/third_party/package-lock.json
	@cd tests/third_party && npm ci --ignore-scripts --no-audit --no-fund --silent
	@touch $@

tests/%/node_modules/.installed: tests/%/package-lock.json
	@cd tests/$* && npm ci --ignore-scripts --no-audit --no-fund --silent
	@touch $@

# --no-deps: the file pins what each package pulls in, too. PyTorch, which GuideLLM loads its data
# with, is the one of $(VENV). Three packages of lm-eval have no wheel.
$(OTHERS)/%/.installed: tests/third_party/environments/%.txt $(INSTALLED)
	@echo "Installing $* into $(OTHERS)"
	@$(PYTHON) -m venv --without-pip $(OTHERS)/$*
	@$(BIN)/python -m pip --python $(OTHERS)/$*/bin/python install --disable-pip-version-check --quiet --no-deps \
		--only-binary :all: --no-binary rouge-score,sqlitedict,word2number -r $<
	@$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
		> $$($(OTHERS)/$*/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/zz_pytorch.pth
	@touch $@

$(MODEL): | $(BIN)/python
	@$(BIN)/python scripts/fetch_model.py $@
