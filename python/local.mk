# SPDX-License-Identifier: MIT
# The Python package: pure Python over the shared library. A file added to python/rowfold/ is added here.
rowfold_py = \
	python/rowfold/__init__.py \
	python/rowfold/__main__.py \
	python/rowfold/_lib.py \
	python/rowfold/arguments.py \
	python/rowfold/arrays.py \
	python/rowfold/backends.py \
	python/rowfold/calls.py \
	python/rowfold/cuda_interface.py \
	python/rowfold/dlpack.py \
	python/rowfold/errors.py \
	python/rowfold/files.py \
	python/rowfold/filetype.py \
	python/rowfold/frameworks.py \
	python/rowfold/handle.py \
	python/rowfold/inputs.py \
	python/rowfold/kinds.py \
	python/rowfold/model.py \
	python/rowfold/npz.py \
	python/rowfold/ops.py \
	python/rowfold/outputs.py \
	python/rowfold/quickstart.py \
	python/rowfold/rows.py \
	python/rowfold/shards.py \
	python/rowfold/tensors.py
rowfold_bench_py = \
	python/rowfold/bench/__init__.py \
	python/rowfold/bench/cases.py \
	python/rowfold/bench/command.py \
	python/rowfold/bench/compare.py \
	python/rowfold/bench/contenders.py \
	python/rowfold/bench/data.py \
	python/rowfold/bench/gpu.py \
	python/rowfold/bench/gpu_scaling.py \
	python/rowfold/bench/machine.py \
	python/rowfold/bench/memory.py \
	python/rowfold/bench/plot.py \
	python/rowfold/bench/report.py \
	python/rowfold/bench/runner.py \
	python/rowfold/bench/scaling.py \
	python/rowfold/bench/sweep.py \
	python/rowfold/bench/unfused.py \
	python/rowfold/bench/watchdog.py \
	python/rowfold/bench/worker.py
rowfold_commands_py = \
	python/rowfold/commands/__init__.py \
	python/rowfold/commands/columns.py \
	python/rowfold/commands/explain.py \
	python/rowfold/commands/info.py \
	python/rowfold/commands/options.py \
	python/rowfold/commands/output.py \
	python/rowfold/commands/rows.py \
	python/rowfold/commands/run.py \
	python/rowfold/commands/score.py \
	python/rowfold/commands/shards.py \
	python/rowfold/commands/streaming.py \
	python/rowfold/commands/writers.py
rowfold_torch_py = \
	python/rowfold/torch/__init__.py \
	python/rowfold/torch/again.py \
	python/rowfold/torch/fuse.py \
	python/rowfold/torch/heads.py \
	python/rowfold/torch/library.py \
	python/rowfold/torch/linearize.py \
	python/rowfold/torch/losses.py \
	python/rowfold/torch/match.py \
	python/rowfold/torch/module.py \
	python/rowfold/torch/partial.py \
	python/rowfold/torch/program.py \
	python/rowfold/torch/recipe.py \
	python/rowfold/torch/regions.py \
	python/rowfold/torch/rows.py \
	python/rowfold/torch/rules.py \
	python/rowfold/torch/rules_columns.py \
	python/rowfold/torch/rules_shapes.py \
	python/rowfold/torch/scoring.py \
	python/rowfold/torch/sharded.py \
	python/rowfold/torch/spellings.py \
	python/rowfold/torch/trace.py \
	python/rowfold/torch/values.py
EXTRA_DIST += $(rowfold_py) $(rowfold_bench_py) $(rowfold_torch_py) $(rowfold_commands_py) python/rowfold/py.typed python/rowfold.in

if HAVE_PYTHON
pkgpython_PYTHON = $(rowfold_py)
benchdir = $(pkgpythondir)/bench
bench_PYTHON = $(rowfold_bench_py)
torchdir = $(pkgpythondir)/torch
torch_PYTHON = $(rowfold_torch_py)
commandsdir = $(pkgpythondir)/commands
commands_PYTHON = $(rowfold_commands_py)
nodist_pkgpython_PYTHON = python/_config.py
pkgpython_DATA = python/rowfold/py.typed
bin_SCRIPTS += python/bin/rowfold
CLEANFILES += $(nodist_pkgpython_PYTHON) python/bin/rowfold
endif

# Where the installed package finds the installed library: by soname, which libtool knows. Looked at by every make, as is the command, since
# make install pythondir=DIR changes what they say. It is not made inside python/rowfold/, so a
# package that runs from the source tree never meets it and looks in the build tree instead.
python/_config.py: lib/librowfold.la FORCE
	@$(MKDIR_P) $(@D)
	@. ./lib/librowfold.la && text=`printf '%s\n' '"""Made by make install: where the library was installed."""' '' "LIBRARY = \"$(libdir)/$$dlname\""` && \
	$(write_text)

python/bin/rowfold: python/rowfold.in FORCE
	@$(MKDIR_P) $(@D)
	@text=`$(SED) -e 's|@PYTHON[@]|$(PYTHON)|' -e 's|@pythondir[@]|$(pythondir)|g' $(srcdir)/python/rowfold.in` && $(write_text) && chmod +x $@

# Where each shell looks for completions of its own accord. The parsers load no library, so nothing of the build is needed to write them.
if HAVE_COMPLETION
bashcompletiondir = $(datadir)/bash-completion/completions
zshcompletiondir = $(datadir)/zsh/site-functions
fishcompletiondir = $(datadir)/fish/vendor_completions.d
bashcompletion_DATA = python/completion/rowfold
zshcompletion_DATA = python/completion/_rowfold
fishcompletion_DATA =
if HAVE_FISH_COMPLETION
fishcompletion_DATA += python/completion/rowfold.fish
endif
completions = $(bashcompletion_DATA) $(zshcompletion_DATA) $(fishcompletion_DATA)
CLEANFILES += $(completions)
$(completions): tools/completion.py lib/presets.def $(rowfold_py) $(rowfold_bench_py) $(rowfold_commands_py)
	@$(MKDIR_P) $(@D)
	$(AM_V_GEN)shell=bash; case $@ in */_rowfold) shell=zsh ;; *.fish) shell=fish ;; esac; \
	PYTHONDONTWRITEBYTECODE=1 $(PYTHON) $(srcdir)/tools/completion.py $$shell > $@.tmp && mv $@.tmp $@
endif
