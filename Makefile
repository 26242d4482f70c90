# The environment is made once, in .venv, from the tested versions of ci/constraints.txt: by ci/run_leg.py, as in CI.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3.10 || command -v python3)
VENV := .venv
RUN := $(VENV)/bin/python
READY := $(VENV)/.ready
TARGET ?= ascend
CASES ?= 2000
SEED ?= 0
LEG ?= cpu-emulator

.PHONY: demo test slow fuzz lint bench-compile ci-leg ci-legs workflow clean
demo: $(READY)
	$(RUN) -m monotile demo

test: $(READY)
	KERNEL_TARGET=$(TARGET) $(RUN) -m pytest

slow: $(READY)
	KERNEL_TARGET=$(TARGET) $(RUN) -m pytest -m slow

fuzz: $(READY)   # CASES calls, shared out among the ops
	KERNEL_TARGET=$(TARGET) MONOTILE_EMULATOR=fast FUZZ_CASES=$(CASES) FUZZ_SEED=$(SEED) \
		$(RUN) -m pytest -m fuzz tests/fuzz

lint: $(READY)
	$(RUN) ci/lint.py

bench-compile: $(READY)
	$(RUN) benchmarks/run.py --compile

ci-leg:   # one leg of ci/matrix.toml, as CI runs it
	$(PYTHON) ci/run_leg.py $(LEG)

ci-legs:
	@$(PYTHON) ci/run_leg.py --list

workflow: $(READY)   # after a change of ci/matrix.toml
	$(RUN) ci/make_workflow.py

$(READY): pyproject.toml ci/constraints.txt
	$(PYTHON) ci/run_leg.py cpu-emulator --prepare

clean:
	rm -rf .venv .venv-* build *.egg-info
