# The commands a person types. The work is done in tools/; this file only names it.
# Works with GNU make 3.81 (the one macOS ships).

PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
SETUP = $(PYTHON) tools/bootstrap.py --venv $(VENV)

.PHONY: help demo test lint native native-test pytest bench docs wheel clean

help:            ## show this list
	@grep -E '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed -e 's/:.*## */	/' | expand -t 16

demo:            ## set up, then train a model on two ranks over mccl
	@$(SETUP) --for demo
	@$(BIN)/mccl demo $(ARGS)

test:            ## set up, then lint, native tests and the whole test suite
	@$(SETUP) --for test
	@$(BIN)/python tools/check.py

lint:            ## ruff, mypy, import directions
	@$(SETUP) --for test
	@$(BIN)/python tools/check.py --only lint

native:          ## build the native library into src/mccl/_lib
	@$(SETUP) --for native

native-test:     ## build and run the native tests
	@$(SETUP) --for test
	@$(BIN)/python tools/check.py --only native

pytest:          ## run the Python tests: make pytest ARGS="tests/config -x"
	@$(SETUP) --for test
	@$(BIN)/python -m pytest $(ARGS)

bench:           ## compare with Gloo and plain sockets on this machine
	@$(SETUP) --for bench
	@$(BIN)/mccl bench compare $(ARGS)

docs:            ## rewrite the pages that are made from the code
	@$(SETUP) --for test
	@$(BIN)/python tools/make_docs.py

wheel:           ## build a wheel into dist/
	@$(SETUP) --for test
	@$(BIN)/python -m pip wheel --no-deps --no-build-isolation -w dist .

clean:           ## remove builds (not the virtual environment)
	rm -rf build dist src/mccl/_lib
