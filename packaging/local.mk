# What other package managers need. doc/packaging.md says how each is used.
EXTRA_DIST += \
	doc/packaging.md \
	packaging/python/LICENSE.jansson \
	packaging/python/check_wheel.sh \
	packaging/python/rowfold_build.py \
	packaging/python/wheel.sh

# The sdist is the tarball of make dist with the package's metadata; the wheels are built from it, not from the tree. auditwheel puts Jansson
# into them and names the oldest glibc whose symbols suffice, or refuses where that is not the one asked for by WHEEL_PLATFORM.
WHEEL_PLATFORM = auto
sdist_gz = dist/$(PACKAGE)-$(PACKAGE_VERSION).tar.gz

sdist:
	$(AM_V_GEN)$(MKDIR_P) dist && $(PYTHON) -m build --sdist --outdir dist $(srcdir)

wheel: sdist
	$(AM_V_GEN)$(make_wheel) --with-cuda=no

# Its name has a label: nothing else in it tells the two apart. The architectures are those of configure: machine code for Ampere and
# Hopper, one PTX for what comes later.
wheel-cuda: sdist
	$(AM_V_GEN)ROWFOLD_LABEL=cuda $(make_wheel) --with-cuda=yes

make_wheel = $(SHELL) $(srcdir)/packaging/python/wheel.sh '$(PYTHON)' '$(WHEEL_PLATFORM)' $(sdist_gz)

# The wheels in dist/, each installed into an empty environment of each of these interpreters.
PYTHONS = $(PYTHON)
check-wheel:
	for wheel in dist/*.whl; do $(SHELL) $(srcdir)/packaging/python/check_wheel.sh "$$wheel" $(PYTHONS) || exit 1; done
.PHONY: check-wheel sdist wheel wheel-cuda
