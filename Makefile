# Every target makes its own set-up. `make help` lists them.

SHELL := /bin/bash -o pipefail
PYTHON ?= python3
BIN := .venv/bin
# What pip trusts, uv shall trust.
export SSL_CERT_FILE ?= $(PIP_CERT)
export UV_SYSTEM_CERTS ?= true

.DEFAULT_GOAL := help
.PHONY: help venv demo test lint types format unit redis servers pythons cluster monitoring bench bench-peers bench-operator crd charts image clean

help: ## List the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  \033[1m%-14s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: .venv/installed ## Make the virtual environment with everything in it

.venv/installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, this is " + sys.version.split()[0]) if sys.version_info < (3, 11) else 0'
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	@[ -n "$$SSL_CERT_FILE" ] || unset SSL_CERT_FILE; $(BIN)/uv pip install --quiet --python $(BIN)/python -e '.[dev]'
	@touch $@

demo: venv ## Show the main job end to end: kubectl, operator, workers, a crash, a stuck queue (KEEP=1 leaves it running)
	@$(BIN)/python -m demo $(if $(KEEP),--keep)

test: lint types redis-server prometheus ## Run everything that CI runs: style, and all tests side by side
	$(BIN)/python -m controlplane build kube-apiserver kube-controller-manager kubectl etcd helm
	$(BIN)/pytest -n 4 --dist loadfile tests

lint: venv ## Check style, types and import arrows
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy client/distributed_semaphore operator/semaphore_operator hack benchmarks
	$(BIN)/lint-imports

types: venv ## Check that the client's public types are complete (pyright, which comes from npm at the first run)
	PATH=$(BIN):$$PATH $(BIN)/pyright --verifytypes distributed_semaphore --ignoreexternal

format: venv ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

unit: venv ## Test what needs no server
	$(BIN)/pytest tests/unit

redis: venv redis-server ## Test protocol and client on real servers
	$(BIN)/pytest tests/redis

servers: venv redis-server ## The same on every server that is here, where `make redis` has two for most tests: Redis 6.2, 7.0, 8, Valkey
	SEMAPHORE_SERVERS=all $(BIN)/pytest -n 2 --dist loadfile tests/redis

cluster: venv ## Test operator and charts on a real API server, with real kubectl and helm
	$(BIN)/pytest tests/cluster

PYTHONS ?= 3.12 3.13 3.14
pythons: venv redis-server ## Test the client on other Pythons (PYTHONS="3.12 3.14 /path/to/python": those that are here)
	for python in $(PYTHONS); do \
	  $(BIN)/uv venv --quiet --clear --python $$python .venv/other \
	  && $(BIN)/uv pip install --quiet --python .venv/other/bin/python -e '.[dev]' \
	  && .venv/other/bin/python -VV && .venv/other/bin/python -m pytest -n 2 tests/unit tests/redis || exit 1; \
	done

monitoring: venv prometheus ## Test alerts and dashboard on Debian's Prometheus and Alertmanager (installed if root)
	$(BIN)/pytest tests/monitoring

.PHONY: redis-server prometheus
redis-server: # Debian's Redis beside the embedded Valkey, where it can be installed
	@command -v redis-server >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	  && echo "installing redis-server" && { apt-get install -y -qq redis-server >/dev/null 2>&1 \
	  || { apt-get update -qq >/dev/null && apt-get install -y -qq redis-server >/dev/null; }; } \
	  || echo "no redis-server on PATH: testing on the embedded Valkey only"; }

prometheus: # Debian's Prometheus and Alertmanager, where they can be installed
	@command -v prometheus >/dev/null && command -v prometheus-alertmanager >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	  && echo "installing prometheus" && { apt-get install -y -qq --no-install-recommends prometheus prometheus-alertmanager >/dev/null 2>&1 \
	  || { apt-get update -qq >/dev/null && apt-get install -y -qq --no-install-recommends prometheus prometheus-alertmanager >/dev/null; }; } \
	  || echo "no prometheus on PATH: alerts are not tested"; }

bench: venv ## Measure what we promise, beside the designs of the article (benchmarks/results, docs/benchmarks.md)
	$(BIN)/python -m benchmarks --check

bench-peers: venv ## Measure public libraries beside ours, each installed in an environment of its own (benchmarks/results)
	$(BIN)/python -m benchmarks peers

bench-operator: venv ## Measure the operator with 5,000 resources on a real API server (benchmarks/results)
	$(BIN)/python -m benchmarks operator --check

crd: venv ## Generate the CRD from the models, and the charts' copy of it
	$(BIN)/python -m semaphore_operator.crd
	$(BIN)/python -m chart_docs

charts: venv ## Bring the charts' tables and their copy of the CRD up to date
	$(BIN)/python -m chart_docs

image: ## Build the operator's image, with docker or, without an engine, buildah
	hack/image/build

clean: ## Remove what the targets made in this folder (caches outside stay)
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache dist build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
