# The environment is made once, in .venv, from the tested versions of ci/constraints.txt.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3.10 || command -v python3)
VENV := .venv
RUN := $(VENV)/bin/python
READY := $(VENV)/.ready

.PHONY: demo test slow lint bench-compile clean
demo: $(READY)
	$(RUN) -m monotile demo

test: $(READY)
	KERNEL_TARGET=ascend $(RUN) -m pytest

slow: $(READY)
	KERNEL_TARGET=ascend $(RUN) -m pytest -m slow

lint: $(READY)
	$(RUN) -m ruff check .
	rm -rf build/typed && mkdir -p build/typed/monotile   # the package as it is imported
	ln -s $(CURDIR)/kernels/* $(CURDIR)/targets $(CURDIR)/compat build/typed/monotile/
	MYPYPATH=build/typed $(RUN) -m mypy -p monotile

bench-compile: $(READY)
	$(RUN) benchmarks/run.py --compile

$(READY): pyproject.toml ci/constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check torch -c ci/constraints.txt
	$(VENV)/bin/pip install --quiet --disable-pip-version-check -c ci/constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info
