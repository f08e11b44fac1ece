# C programs that use the library as a C user would; each exits 0, or 77 to be skipped. A program added to tests/c/ is added here.
check_PROGRAMS += \
	tests/c/test_chain \
	tests/c/test_file \
	tests/c/test_plan \
	tests/c/version
LDADD = lib/librowfold.la
# Looks inside the library.
tests_c_test_plan_LDADD = lib/libplan.la $(JANSSON_LIBS)
tests_c_version_CPPFLAGS = $(AM_CPPFLAGS) -DEXPECTED_VERSION='"$(PACKAGE_VERSION)"'

dist_check_SCRIPTS += tests/exports.sh
EXTRA_DIST += tests/installed.sh
TESTS += $(check_PROGRAMS) $(dist_check_SCRIPTS)
AM_TESTS_ENVIRONMENT = NM='$(NM_PROGRAM)'; export NM;

# Against what make install put down; make distcheck runs this too.
installcheck-local:
	srcdir='$(abs_srcdir)' VERSION='$(PACKAGE_VERSION)' CC='$(CC)' CFLAGS='$(CFLAGS)' PKG_CONFIG='$(PKG_CONFIG)' PYTHON='$(PYTHON)' \
	bindir='$(DESTDIR)$(bindir)' includedir='$(DESTDIR)$(includedir)' libdir='$(DESTDIR)$(libdir)' \
	pythondir='$(DESTDIR)$(pythondir)' $(SHELL) $(srcdir)/tests/installed.sh

# A Python test that is added to tests/ is added here, so that the tarball has it.
EXTRA_DIST += \
	tests/cases.py \
	tests/conftest.py \
	tests/datasets.py \
	tests/oracle.py \
	tests/stored.py \
	tests/strategies.py \
	tests/test_fuzz.py \
	tests/test_oracle.py \
	tests/test_python_arrays.py \
	tests/test_python_layout.py \
	tests/test_python_model.py \
	tests/test_python_ops.py

# The Python tests, on every backend this machine has, with the library and the package of this build.
PYTEST_FLAGS =
check-python: all
	cd $(srcdir) && ROWFOLD_LIBRARY='$(abs_builddir)/lib/.libs/librowfold.so' PYTHONPATH=python $(PYTHON) -m pytest $(PYTEST_FLAGS) tests
.PHONY: check-python
