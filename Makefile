# gpuspawner: `make up` runs it, `make test` tests it. Both set up what they need first; a second time that takes a moment.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules --no-print-directory

PY := .venv/bin/python
STAMPS := .stamps
# one for each checkout: the packages of this one are installed in it
HUB5 := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/gpuspawner/hub5-$(firstword $(shell echo "$(CURDIR)" | cksum))
UV = $$(tools/uv)
export UV_LINK_MODE ?= copy
export PATH := $(CURDIR)/.venv/bin:$(PATH)
export GPUSPAWNER_START_COMMAND ?= make up
export GPUSPAWNER_STOP_COMMAND ?= make stop
TORCH := .venv-torch
# Of tests that were chosen by PYTEST_ARGS there may be none in a part (pytest's status 5), and that is no fault.
CHOSEN = || [ $$? = 5 -a -n "$${PYTEST_ARGS:-}" ]
export GPUSPAWNER_RUNTIME ?= $(if $(wildcard $(STAMPS)/torch),$(CURDIR)/$(TORCH))

simulation_src := $(wildcard gpuspawner/simulation/Makefile $(shell find gpuspawner/simulation/src -type f 2>/dev/null))
limits_src := $(wildcard gpuspawner/node/limits/Makefile $(shell find gpuspawner/node/limits -type f \( -name '*.c' -o -name '*.h' -o -name '*.map' \) 2>/dev/null))
lab_src := $(shell find extensions/lab/src extensions/lab/style -type f 2>/dev/null) $(wildcard extensions/lab/tsconfig*.json)
page_src := $(shell find extensions/admin/src extensions/admin/style -type f -not -path '*/__tests__/*' 2>/dev/null) extensions/admin/build.mjs $(wildcard extensions/lab/src/format.ts extensions/lab/src/eighths.tsx extensions/lab/style/*.css)
lab_py := $(shell find extensions/lab/gpuspawner_lab extensions/lab/jupyter-config -type f -not -path '*/labextension/*' -not -path '*/__pycache__/*' 2>/dev/null)

.PHONY: help up runtime stop status test test-hub5 test-runtime test-quantum test-examples test-cluster test-images soak lint docs check-c cluster images bench setup setup-dev lock clean

help: ## this list
	@grep -hE '^[a-z0-9%-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9%-]+):.*## /\1\t/' | while IFS=$$'\t' read -r name text; do printf '  make %-14s %s\n' "$$name" "$$text"; done

up: setup ## set up and run JupyterHub at 127.0.0.1:8000 (GPUSPAWNER_PORT) until Ctrl-C
	@exec $(PY) -m gpuspawner.cli up

runtime: $(STAMPS)/torch ## make the environment with PyTorch (4.5 GB), which `make up` then offers on the form

stop: ## end everything, the servers that run on included
	@[ -x $(PY) ] || { echo "Nothing is set up, so nothing is running."; exit 0; }
	@$(PY) -m gpuspawner.cli stop

status: ## show the cards and the sessions
	@[ -x $(PY) ] || { echo "Nothing is set up."; exit 1; }
	@$(PY) -m gpuspawner.cli status

test: setup-dev $(STAMPS)/torch ## check style and types and run every test
	@tools/test

test-hub5: setup-dev $(STAMPS)/hub5 ## run those tests of the hub that may differ between JupyterHub 5 and 6 with JupyterHub 5
	@GPUSPAWNER_TEST_PYTHON=$(HUB5)/bin/python $(PY) -m pytest -q -m versions $${PYTEST_ARGS:-} tests/integration/hub $(CHOSEN)

test-runtime: ## run the tests of the runtime, in an environment of their own with PyTorch (4.5 GB)
	@python="$$(tools/runtime-env)"; $$python -m pytest -q --session-timeout=$${GPUSPAWNER_TEST_TIMEOUT:-2400} $${PYTEST_ARGS:-} tests/runtime $(CHOSEN)

test-quantum: ## run the tests of quantum circuits, in an environment of their own with the simulators (0.5 GB)
	@python="$$(tools/quantum-env)"; $$python -m pytest -q $${PYTEST_ARGS:-} tests/quantum $(CHOSEN)

test-examples: ## run the tests of the worked examples, in the runtime's environment and 0.6 GB more
	@python="$$(tools/examples-env)"; $$python -m pytest -q $${PYTEST_ARGS:-} tests/examples $(CHOSEN)

test-cluster: setup-dev $(STAMPS)/cluster ## run the tests on a Kubernetes cluster of their own (as root; builds it the first time, in a quarter of an hour and more)
	@[ -n "$${GPUSPAWNER_TEST_KUBECONFIG:-}" ] || $(PY) -m tests.support.cluster.build etcd kubernetes containerd kwok helm
	@$(PY) -m pytest -q $${PYTEST_ARGS:-} tests/cluster

soak: setup-dev ## run random starts, resizes, kills and clock jumps for half an hour (GPUSPAWNER_SOAK_SECONDS)
	@GPUSPAWNER_SOAK_SECONDS=$${GPUSPAWNER_SOAK_SECONDS:-1800} $(PY) -m pytest -q -s tests/integration/test_properties.py tests/integration/hub/test_properties_hub.py

lint: setup-dev ## check style and types only
	@tools/test lint

check-c: setup-dev ## check the C code: cppcheck, clang-tidy, sanitizers, fuzzing of what reads files and sockets
	@tools/check-c

cluster: setup-dev $(STAMPS)/cluster ## run a Kubernetes cluster for tests until Ctrl-C, and print its kubeconfig (as root)
	@$(PY) -m tests.support.cluster $(CLUSTER_ARGS)

images: $(STAMPS)/proxy $(STAMPS)/lab-build $(STAMPS)/page $(STAMPS)/cluster ## build the images of the chart with buildah (IMAGES_ARGS="--base IMAGE --prefix REGISTRY/gpuspawner-")
	@tools/images $(IMAGES_ARGS)

image-%: $(STAMPS)/lab-build ## build a notebook image with buildah: base, rendering or quantum (IMAGES_ARGS as for images)
	@tools/image $* $(IMAGES_ARGS)

test-images: setup-dev $(STAMPS)/cluster image-base image-quantum image-rendering ## build the notebook images and run each in a container with a share (as root)
	@$(PY) -m pytest -q $${PYTEST_ARGS:-} tests/images

docs: setup-dev ## build the documentation into build/docs, warnings as errors
	@$(PY) -m sphinx -q -W --keep-going -b html docs build/docs
	@echo "Built: build/docs/index.html"

bench: setup-dev ## run every benchmark and print a table
	@$(PY) -m tests.bench

bench-%: setup-dev ## run one benchmark, e.g. make bench-resize
	@$(PY) -m tests.bench $*

setup: $(STAMPS)/runtime $(STAMPS)/package $(STAMPS)/proxy $(STAMPS)/simulation $(STAMPS)/limits $(STAMPS)/lab $(STAMPS)/page $(STAMPS)/bytecode ## set up all that `make up` needs

setup-dev: $(STAMPS)/dev setup $(STAMPS)/bytecode-dev $(STAMPS)/browser $(STAMPS)/c-checkers $(STAMPS)/postgres $(STAMPS)/test-programs ## set up all that `make test` needs

lock: $(STAMPS)/venv ## resolve the Python dependencies anew
	$(UV) pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url --extra notebook --extra oauth --extra kubernetes --extra parquet --extra plots --extra postgresql --extra dev --extra docs --upgrade -q -o requirements/lock.txt
	$(UV) pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url --extra notebook --extra oauth -c requirements/lock.txt -q -o requirements/runtime.txt
	$(UV) pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url --extra kubernetes --extra oauth -c requirements/lock.txt -q -o requirements/cluster.txt
	$(UV) pip compile requirements/images.in --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --no-emit-index-url --upgrade -q -o requirements/images.txt
	grep -E '^[a-z0-9._-]+==' requirements/lock.txt | grep -vE '^(cuda|nvidia)-' | sed 's/ *\\$$//' > $(STAMPS)/same.txt
	$(UV) pip compile images/runtime/pyproject.toml requirements/torch.in --override requirements/torch-overrides.in --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --no-emit-index-url --extra torch --extra test -c $(STAMPS)/same.txt --upgrade -q -o requirements/torch.txt
	$(UV) pip compile images/runtime/pyproject.toml requirements/quantum.in --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --no-emit-index-url --extra quantum -c $(STAMPS)/same.txt --upgrade -q -o requirements/quantum.txt
	$(UV) pip compile images/examples/pyproject.toml images/runtime/pyproject.toml requirements/torch.in --override requirements/torch-overrides.in --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --no-emit-index-url --extra test --extra torch -c requirements/torch.txt $$(sed -n 's/^\([a-zA-Z0-9._-]*\)==.*/--no-emit-package \1/p' requirements/torch.txt) --upgrade -q -o requirements/examples.txt
	$(UV) pip compile images/runtime/pyproject.toml --extra quantum --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --no-emit-index-url -c requirements/quantum.txt --upgrade -q -o requirements/quantum-image.txt
	$(UV) pip compile images/runtime/pyproject.toml requirements/base.in --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --no-emit-index-url -c $(STAMPS)/same.txt --upgrade -q -o requirements/base.txt
	$(UV) pip compile requirements/rendering.in --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --no-emit-index-url -c requirements/torch.txt -c requirements/examples.txt -c $(STAMPS)/same.txt --upgrade -q -o requirements/rendering.txt
	$(UV) pip compile images/runtime/pyproject.toml requirements/training.in --override requirements/training-overrides.in --extra torch --extra s3 --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --no-emit-index-url -c requirements/torch.txt -c $(STAMPS)/same.txt --upgrade -q -o requirements/training.txt
	$(UV) pip compile requirements/sbom.in --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --no-emit-index-url --upgrade -q -o requirements/sbom.txt

clean: ## remove everything that set-up made here (not your notebooks: those are in the state folder)
	rm -rf .venv $(TORCH) $(STAMPS) node_modules extensions/lab/node_modules extensions/lab/lib extensions/lab/gpuspawner_lab/labextension extensions/lab/*.tsbuildinfo gpuspawner/service/panel/static
	rm -rf gpuspawner/simulation/bin gpuspawner/node/limits/bin test-output build/docs

# -- set-up, a stamp for each step ------------------------------------------------------------------------

$(STAMPS)/venv: tools/uv tools/python
	@mkdir -p $(STAMPS); tools/needs
	@echo "== Python environment"
	@python="$$(tools/python)"; [ -x $(PY) ] || $(UV) venv -q --python "$$python" .venv
	@touch $@

$(STAMPS)/runtime: requirements/runtime.txt | $(STAMPS)/venv
	@echo "== Python packages"
	@$(UV) pip install -q --python $(PY) -r requirements/runtime.txt
	@touch $@

$(STAMPS)/dev: requirements/lock.txt | $(STAMPS)/runtime
	@echo "== Python packages for tests"
	@$(UV) pip install -q --python $(PY) -r requirements/lock.txt
	@# Voila's own tests run it by itself; as a part of every notebook server it would slow down every start in the tests.
	@rm -f .venv/etc/jupyter/jupyter_server_config.d/voila.json
	@touch $@

$(STAMPS)/package: pyproject.toml | $(STAMPS)/runtime
	@$(UV) pip install -q --python $(PY) --no-deps -e .
	@touch $@

$(STAMPS)/proxy: package.json package-lock.json
	@mkdir -p $(STAMPS); tools/needs
	@echo "== configurable-http-proxy"
	@npm ci --no-audit --no-fund --no-update-notifier --loglevel=error >/dev/null
	@touch $@

$(STAMPS)/simulation: $(simulation_src)
	@mkdir -p $(STAMPS)
	@echo "== simulated cards"
	@$(MAKE) -s -C gpuspawner/simulation
	@touch $@

$(STAMPS)/limits: $(limits_src)
	@mkdir -p $(STAMPS)
	@echo "== limits"
	@$(MAKE) -s -C gpuspawner/node/limits
	@touch $@

$(STAMPS)/lab-modules: extensions/lab/package.json extensions/lab/package-lock.json
	@mkdir -p $(STAMPS); tools/needs
	@echo "== Lab extension: packages"
	@cd extensions/lab && npm ci --no-audit --no-fund --no-update-notifier --loglevel=error >/dev/null
	@touch $@

$(STAMPS)/lab-build: $(STAMPS)/lab-modules $(lab_src) | $(STAMPS)/runtime
	@echo "== Lab extension: build"
	@said=$$(cd extensions/lab && npm run -s build 2>&1) || { echo "$$said" >&2; exit 1; }
	@touch $@

# The page about cards that the service serves, with the packages of the Lab extension.
$(STAMPS)/page: $(STAMPS)/lab-modules $(page_src)
	@echo "== page about cards: build"
	@node extensions/admin/build.mjs
	@touch $@

$(STAMPS)/lab: $(STAMPS)/lab-build $(lab_py) extensions/lab/pyproject.toml | $(STAMPS)/package
	@echo "== Lab extension: install"
	@$(UV) pip install -q --python $(PY) --no-deps --reinstall-package gpuspawner-lab ./extensions/lab
	@touch $@

runtime_src := $(shell find images/runtime -type f -not -path '*/__pycache__/*' 2>/dev/null)

# A copy of the environment that the runtime's tests have, by links where the file systems allow: PyTorch is there once.
$(STAMPS)/torch-packages: requirements/torch.txt tools/runtime-env tools/copy-env | $(STAMPS)/venv
	@echo "== PyTorch, into $(TORCH)"
	@python="$$(tools/runtime-env)"; tools/copy-env "$$(dirname "$$(dirname "$$python")")" $(TORCH)
	@touch $@

$(STAMPS)/torch: $(STAMPS)/torch-packages $(STAMPS)/lab-build $(lab_py) $(runtime_src)
	@echo "== The runtime and the Lab extension, into $(TORCH)"
	@$(UV) pip install -q --python $(TORCH)/bin/python --no-deps --reinstall-package gpuspawner-lab --reinstall-package gpuspawner-runtime ./extensions/lab ./images/runtime
	@$(TORCH)/bin/python -m compileall -qq $(TORCH)/lib/python*/site-packages/gpuspawner_* || true
	@touch $@

$(STAMPS)/hub5: requirements/runtime.txt requirements/hub5.txt $(lab_py) $(STAMPS)/lab-build | $(STAMPS)/dev $(STAMPS)/package $(STAMPS)/lab
	@echo "== JupyterHub 5, into $(HUB5)"
	@$(UV) venv -q --clear --python $(PY) $(HUB5)
	@$(UV) pip install -q --python $(HUB5)/bin/python -r requirements/runtime.txt
	@$(UV) pip install -q --python $(HUB5)/bin/python --no-deps -r requirements/hub5.txt
	@$(UV) pip install -q --python $(HUB5)/bin/python --no-deps -e . ./extensions/lab
	@$(HUB5)/bin/python -m compileall -qq -j 0 $(HUB5)/lib || true
	@touch $@

# Who runs a session may not write into .venv, and some environments forbid it to all; without this each process that
# starts compiles everything it imports anew. What is compiled already is skipped; a file that cannot be is no error.
$(STAMPS)/bytecode: $(STAMPS)/runtime $(STAMPS)/package $(STAMPS)/lab
	@echo "== Python bytecode"
	@$(PY) -m compileall -qq -j 0 .venv/lib gpuspawner || true
	@# uv lets everybody write its lock, sessions too, and whoever holds it stops the next set-up.
	@rm -f .venv/.lock
	@touch $@

$(STAMPS)/bytecode-dev: $(STAMPS)/dev | $(STAMPS)/bytecode
	@echo "== Python bytecode for tests"
	@$(PY) -m compileall -qq -j 0 .venv/lib || true
	@touch $@

$(STAMPS)/c-checkers: tools/c-checkers
	@mkdir -p $(STAMPS); tools/c-checkers
	@touch $@

$(STAMPS)/browser: tools/browser
	@mkdir -p $(STAMPS); tools/browser
	@touch $@

$(STAMPS)/postgres: tools/postgres
	@mkdir -p $(STAMPS); tools/postgres
	@touch $@

$(STAMPS)/test-programs: tools/test-programs
	@mkdir -p $(STAMPS); tools/test-programs
	@touch $@

$(STAMPS)/cluster: tools/cluster
	@mkdir -p $(STAMPS); tools/cluster
	@touch $@
