# C programs that use the library as a C user would; each exits 0, or 77 to be skipped. A program added to tests/c/ is added here.
check_PROGRAMS += \
	tests/c/test_chain \
	tests/c/test_file \
	tests/c/version
LDADD = lib/librowfold.la
tests_c_version_CPPFLAGS = $(AM_CPPFLAGS) -DEXPECTED_VERSION='"$(PACKAGE_VERSION)"'

EXTRA_DIST += tests/exports.sh tests/installed.sh
TESTS += $(check_PROGRAMS) $(dist_check_SCRIPTS)
AM_TESTS_ENVIRONMENT = NM='$(NM_PROGRAM)'; export NM;

# Against what make install put down; make distcheck runs this too.
installcheck-local:
	CC='$(CC)' PKG_CONFIG='$(PKG_CONFIG)' PYTHON='$(PYTHON)' \
	bindir='$(DESTDIR)$(bindir)' libdir='$(DESTDIR)$(libdir)' pythondir='$(DESTDIR)$(pythondir)' VERSION='$(PACKAGE_VERSION)' \
	$(SHELL) $(srcdir)/tests/installed.sh $(srcdir)/tests/c

# The Python tests, on every backend this machine has, with the library and the package of this build.
PYTEST_FLAGS =
check-python: all
	cd $(srcdir) && ROWFOLD_LIBRARY='$(abs_builddir)/lib/.libs/librowfold.so' PYTHONPATH=python $(PYTHON) -m pytest $(PYTEST_FLAGS) tests
.PHONY: check-python
