# make help says what there is. Needs Python 3.11 or newer and nothing else.

PYTHON ?= python3
VENV ?= .venv
TRITON ?= 3.9.0
JOBS ?= 2
NOTEBOOK := notebooks/00_start_here.ipynb
# JupyterLab refuses to run as root, as one is in a container, unless told
LAB_ARGS ?= $(if $(filter 0,$(shell id -u)),--allow-root)

VENV_PYTHON := $(VENV)/bin/python
INSTALL := $(VENV_PYTHON) -m pip install $(if $(CI),--quiet) --constraint constraints.txt $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
EXTRAS := lab,triton
ifneq ($(findstring rocm,$(TORCH_INDEX)),)
EXTRAS := lab# ROCm's build of torch brings its own Triton
endif

.PHONY: help lab test test-triton test-gpu viewer constraints clean
.DELETE_ON_ERROR:

help:
	@echo "make lab           open the first notebook in JupyterLab; the first time, set up $(VENV)"
	@echo "make test          the same set-up, then linters, types and tests; PYTEST_ARGS='-k trace' chooses"
	@echo "make test-triton TRITON=3.6.0   after make test: the tests of the kernels with another Triton"
	@echo "make test-gpu      the tests that need a GPU; with PYTHON=python they run in that one, as it is"
	@echo "make viewer        test the page of the trace viewer and build it anew; needs Node 20 or newer and its npm"
	@echo "make constraints   constraints.txt anew: the newest of everything but torch and triton"
	@echo "make clean         remove $(VENV) and .matrix"
	@echo
	@echo "PYTHON=python3.12  the Python to make $(VENV) from"
	@echo "TORCH_INDEX=https://download.pytorch.org/whl/cpu     the build of torch for the CPU, a tenth of the size of the"
	@echo "            usual one for CUDA; .../whl/rocm7.2 is for AMD GPUs. To change it later: make clean first."
	@echo "LAB_ARGS='--no-browser --port=9000'   what JupyterLab is told"

lab: $(VENV)/.lab
	$(VENV_PYTHON) -m jupyterlab --LabApp.default_url=/lab/tree/$(NOTEBOOK) $(LAB_ARGS)

test: $(VENV)/.test
	$(VENV_PYTHON) -m ruff check
	$(VENV_PYTHON) -m ruff format --check
	$(VENV_PYTHON) -m mypy
	$(VENV_PYTHON) -m pytest -n $(JOBS) --dist worksteal -m "not speed" $(PYTEST_ARGS)
	$(VENV_PYTHON) -m pytest -m speed

test-triton: .matrix/$(TRITON)/.ready
	.matrix/$(TRITON)/bin/python -m pytest -n $(JOBS) --dist worksteal -m "triton and not slow and not speed" $(PYTEST_ARGS)

# A PYTHON that was given is used as it is: on a machine with a GPU it is the one that holds the right torch
ifeq ($(origin PYTHON),file)
test-gpu: GPU_PYTHON := $(VENV_PYTHON)
test-gpu: $(VENV)/.test
else
test-gpu: GPU_PYTHON := $(PYTHON)
endif
test-gpu:
	@$(GPU_PYTHON) -c 'import torch; torch.cuda.is_available() or exit("make test-gpu: torch sees no GPU here.")'
	$(GPU_PYTHON) -m pytest -m gpu $(PYTEST_ARGS)

# Everything below makes environments. A stamp is left only when a set-up has succeeded.

$(VENV_PYTHON):
	@command -v $(PYTHON) >/dev/null || { \
	  echo "KOSMOS needs Python 3.11 or newer, and there is no $(PYTHON) here." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("KOSMOS needs Python 3.11 or newer, and $(PYTHON) is %d.%d: name a newer one with PYTHON=python3.12." % sys.version_info[:2])'
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "$(PYTHON) cannot make virtual environments: install its venv module (on Debian and Ubuntu, python3-venv)." >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV) || { rm -rf $(VENV); exit 1; }

$(VENV)/.lab: pyproject.toml constraints.txt | $(VENV_PYTHON)
	$(INSTALL) --editable ".[$(EXTRAS)]"
	@touch $@

$(VENV)/.test: $(VENV)/.lab
	$(INSTALL) --editable ".[$(EXTRAS),test,dev]"
	@touch $@

# An environment that differs from $(VENV) in its Triton alone: Triton is installed first, then $(VENV) shows through
.matrix/%/.ready: | $(VENV)/.test
	$(VENV_PYTHON) -m venv --clear --without-pip .matrix/$*
	$(VENV_PYTHON) -m pip --python .matrix/$*/bin/python install --quiet --no-deps triton==$*
	$(VENV_PYTHON) -c 'import site; print("import site; site.addsitedir(%r)" % site.getsitepackages()[0])' \
	  > "$$(.matrix/$*/bin/python -c 'import site; print(site.getsitepackages()[0])')/shared.pth"
	@touch $@

viewer:
	cd kosmos/viewer/src && npm ci --ignore-scripts --no-audit --no-fund && npm test && npm run build

constraints:
	$(PYTHON) -m venv --clear .matrix/constraints
	.matrix/constraints/bin/python -m pip install --quiet ".[triton,lab,test,nvidia,dev]" $$(grep -E '^(torch|triton)==' constraints.txt)
	{ grep '^#' constraints.txt; .matrix/constraints/bin/python -m pip freeze --exclude kosmos | sed 's/+.*//'; } > constraints.new
	mv constraints.new constraints.txt
	rm -r .matrix/constraints

clean:
	rm -rf $(VENV) .matrix
