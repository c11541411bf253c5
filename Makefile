# Every target may be called again: what is there already is kept. Targets that check end with `N passed, N failed`.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
ORCHESTRATE := $(VENV)/bin/orchestrate

.PHONY: run venv lint test versions-test test-full troubles-test screen-test hosts-test hosts-test-more router-test rolling-test fault-matrix crash-matrix real-kills bench docs clean help

help:
	@echo "make run            deploy DDTree on the embedded host, for real (exit 0: adopted or measured as not worth it)"
	@echo "make test           unit, property, engine and end-to-end tests (at most 20 minutes on 2 cores)"
	@echo "make versions-test  the engine's tests against the newest supported SGLang (12 minutes)"
	@echo "make lint           ruff, mypy, import contracts"
	@echo "make troubles-test  what goes wrong in a real deployment on an embedded host (six minutes)"
	@echo "make hosts-test     tests on real sshd + systemd hosts (root, Debian)"
	@echo "make hosts-test-more  a group of hosts, and deploy-dflash with the real engine, on such hosts"
	@echo "make router-test    replicas behind SGLang's router, rolled under load: stand-in engines, the real router"
	@echo "make rolling-test   replicas behind SGLang's router, rolled under load: stand-ins, then real engines (long)"
	@echo "make fault-matrix   every fault at every point of a deploy, on those hosts"
	@echo "make crash-matrix   SIGKILL at every event of a run of stand-in phases"
	@echo "make real-kills     SIGKILL at random events of real deployments (long)"
	@echo "make screen-test    a whole deployment driven through the TUI in a real terminal"
	@echo "make test-full      test, the test above, engines broken on purpose, and what needs large downloads"
	@echo "make bench          the orchestrator's own benchmarks"
	@echo "make docs           regenerate what is generated in docs/"
	@echo "make clean          remove every trace, embedded and test hosts included"

venv: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	@echo "making $(VENV): pinned packages from constraints.txt"
	@$(PYTHON) -m venv $(VENV)
	@$(PY) -m pip install -q --disable-pip-version-check --progress-bar off -c constraints.txt -e '.[dev,postgres]'
	@touch $@

# orchestrate leaves its JSON document in .run/last.json; 9 means: measured, and not adopted.
run: venv
	@code=0; $(ORCHESTRATE) run deploy-ddtree --yes || code=$$?; [ $$code = 0 ] || [ $$code = 9 ] || exit $$code

lint: venv
	@$(PY) -m tools.lint

test: venv
	@$(PY) -m tools.run_tests

# The newest SGLang that the plugin supports; make test has the one that it is developed against.
versions-test: venv
	@$(PY) -m tools.run_tests engine-0.5.23

test-full: venv
	@$(PY) -m tools.run_tests
	@$(PY) -m tools.run_tests troubles wheels engine-0.5.23 screen broken

troubles-test: venv
	@$(PY) -m tools.run_tests troubles

# About six minutes: a real deployment on an embedded host, by keys in tmux.
screen-test: venv
	@$(PY) -m tools.run_tests screen

hosts-test: venv
	@$(PY) -m tests.hosts_lab

hosts-test-more: venv
	@$(PY) -m tests.hosts_lab more

router-test: venv
	@$(PY) -m tools.run_tests router

# The test above, then three real engines under load: half an hour on 2 cores.
rolling-test: venv
	@$(PY) -m tools.run_tests router rolling

fault-matrix: venv
	@$(PY) -m tests.hosts_lab.fault_matrix --jobs 5

crash-matrix: venv
	@$(PY) -m tests.graph.crash_matrix

# Minutes per kill point: real deployments on an embedded host.
real-kills: venv
	@$(PY) -m tests.graph.real_kills

bench: venv
	@$(PY) -m tests.graph.bench
	@$(PY) -m tests.bench.selfbench
	@$(PY) -m tests.tui.scale

docs: venv
	@$(PY) -m tools.docs

clean:
	@[ ! -x $(PY) ] || $(PY) -m tools.clean
	@rm -rf $(VENV) .run .cache .pytest_cache .hypothesis .mypy_cache .ruff_cache .import_linter_cache *.egg-info build dist
