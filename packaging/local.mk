# SPDX-License-Identifier: MIT
# What other package managers need. doc/packaging.md says how each is used.
EXTRA_DIST += \
	doc/packaging.md \
	packaging/conda/recipe.yaml \
	packaging/spack/packages/rowfold/package.py \
	packaging/spack/repo.yaml \
	packaging/python/LICENSE.jansson \
	packaging/cmake/rowfoldConfig.cmake.in \
	packaging/cmake/rowfoldConfigVersion.cmake.in \
	packaging/debian/changelog \
	packaging/debian/control \
	packaging/debian/copyright \
	packaging/debian/librowfold-dev.install \
	packaging/debian/librowfold-dev.lintian-overrides \
	packaging/debian/librowfold-mpi-dev.install \
	packaging/debian/librowfold-mpi-dev.lintian-overrides \
	packaging/debian/librowfold-mpi0.install \
	packaging/debian/librowfold-mpi0.lintian-overrides \
	packaging/debian/librowfold0.install \
	packaging/debian/librowfold0.lintian-overrides \
	packaging/debian/python3-rowfold.install \
	packaging/debian/python3-rowfold.lintian-overrides \
	packaging/debian/rules \
	packaging/debian/source/format \
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
# Hopper, one PTX for what comes later. Kernels are packed as small as nvcc can, which is 0.7 of what it does by itself.
wheel-cuda: sdist
	$(AM_V_GEN)ROWFOLD_LABEL=cuda $(make_wheel) '--with-cuda=yes "NVCCFLAGS=-O3 --compress-mode=size"'

make_wheel = $(SHELL) $(srcdir)/packaging/python/wheel.sh '$(PYTHON)' '$(WHEEL_PLATFORM)' $(sdist_gz)

# The wheels in dist/, each installed into an empty environment of each of these interpreters.
PYTHONS = $(PYTHON)
check-wheel:
	for wheel in dist/*.whl; do $(SHELL) $(srcdir)/packaging/python/check_wheel.sh "$$wheel" $(PYTHONS) || exit 1; done
.PHONY: check-wheel sdist wheel wheel-cuda

# For find_package. What leads from the directory of these files to that of the header is relative where both are below the prefix.
cmakedir = $(libdir)/cmake/rowfold
cmake_DATA = packaging/cmake/rowfoldConfig.cmake packaging/cmake/rowfoldConfigVersion.cmake
CLEANFILES += $(cmake_DATA)
static_libs = $(STATIC_LIBS) $(JANSSON_LIBS)
packaging/cmake/rowfoldConfig.cmake: packaging/cmake/rowfoldConfig.cmake.in Makefile
	@$(MKDIR_P) $(@D)
	$(AM_V_GEN)include='$(includedir)'; \
	case '$(cmakedir)' in '$(prefix)'/*) \
	  case "$$include" in '$(prefix)'/*) \
	    up=`echo '$(cmakedir)' | $(SED) -e 's|^$(prefix)/||' -e 's|[^/][^/]*|..|g'`; \
	    include=$$up/`echo "$$include" | $(SED) 's|^$(prefix)/||'` ;; \
	  esac ;; \
	esac; \
	libs=`echo $(static_libs) | tr ' ' ';'`; \
	$(SED) -e "s|@include[@]|$$include|" -e "s|@static_libs[@]|$$libs|" $(srcdir)/$@.in > $@
packaging/cmake/rowfoldConfigVersion.cmake: packaging/cmake/rowfoldConfigVersion.cmake.in Makefile
	@$(MKDIR_P) $(@D)
	$(AM_V_GEN)$(SED) -e 's|@PACKAGE_VERSION[@]|$(PACKAGE_VERSION)|' -e 's|@SIZEOF_VOID_P[@]|$(SIZEOF_VOID_P)|' $(srcdir)/$@.in > $@
