# SPDX-License-Identifier: MIT
# C programs that use the library as a C user would: nothing but rowfold.h, and make installcheck runs them against what was installed.
# Each exits 0, or 77 to be skipped. A program added to tests/c/ is added here or below. The longest
# come first: one that began last would run alone.
public_programs = \
	tests/c/test_shards \
	tests/c/test_cpu_invariance \
	tests/c/test_fp_mode \
	tests/c/test_api \
	tests/c/test_bounds \
	tests/c/test_chain \
	tests/c/test_cpu_threads \
	tests/c/test_file \
	tests/c/test_file_faults \
	tests/c/test_header_0_1 \
	tests/c/test_malloc \
	tests/c/test_rounding \
	tests/c/test_results \
	tests/c/test_signals \
	tests/c/test_sizes \
	tests/c/test_thread_faults \
	tests/c/version
# C programs that look inside the library.
internal_programs = \
	tests/c/test_affine \
	tests/c/test_blocking \
	tests/c/test_choose \
	tests/c/test_collapse \
	tests/c/test_explain \
	tests/c/test_partials \
	tests/c/test_passes \
	tests/c/test_plan \
	tests/c/test_pool \
	tests/c/test_vmath
# With the kernels for AMX, whose tiles are plain C there.
if BUILD_AVX512_BF16
internal_programs += tests/c/test_terms tests/c/test_tiles
check_LTLIBRARIES += tests/c/libtiles.la
endif
tests_c_libtiles_la_SOURCES = tests/c/emulated_amx_bf16.c tests/c/emulated_amx_fp16.c tests/c/emulated_amx_terms.c \
	tests/c/emulated_tiles.c
$(tests_c_libtiles_la_OBJECTS): override CFLAGS += $(KERNEL_CFLAGS) $(AVX512_BF16_CFLAGS)
EXTRA_DIST += tests/c/test_terms.c tests/c/test_tiles.c
tests_c_test_terms_LDADD = tests/c/libtiles.la lib/cpu/libavx512_bf16.la -lm
tests_c_test_tiles_LDADD = $(tests_c_test_terms_LDADD)
# Of the library's own objects, whose calls to the CUDA runtime the linker leads through the program.
if HAVE_CUDA
internal_programs += tests/c/test_cuda_faults
endif
cuda_calls = cudaDeviceGetAttribute cudaFree cudaFreeAsync cudaFuncGetAttributes cudaFuncSetAttribute cudaGetDevice cudaGetDeviceCount \
	cudaGetDeviceProperties cudaGetDeviceProperties_v2 cudaGetDriverEntryPointByVersion cudaLaunchKernelExC cudaMalloc \
	cudaMallocFromPoolAsync cudaMemcpy2DAsync cudaMemcpyAsync cudaMemPoolCreate cudaMemPoolSetAttribute cudaMemPoolTrimTo cudaMemsetAsync \
	cudaPointerGetAttributes cudaSetDevice cudaStreamSynchronize
tests_c_test_cuda_faults_SOURCES = tests/c/test_cuda_faults.c $(lib_librowfold_la_SOURCES)
tests_c_test_cuda_faults_CPPFLAGS = $(AM_CPPFLAGS) $(CUDA_CPPFLAGS)
tests_c_test_cuda_faults_CFLAGS = $(AM_CFLAGS) $(JANSSON_CFLAGS)
tests_c_test_cuda_faults_LDADD = $(lib_librowfold_la_LIBADD)
tests_c_test_cuda_faults_LDFLAGS = $(cuda_calls:%=-Wl,--wrap=%)
noinst_HEADERS += tests/c/check.h tests/c/emulated_tiles.h tests/c/random.h tests/c/ranks.h tests/c/rowfold_0_1.h tests/c/shard.h tests/c/slow.h
check_PROGRAMS += $(public_programs) $(internal_programs)
# Run by tests/mpi.sh, on several ranks.
mpi_programs =
if HAVE_MPI
mpi_programs += tests/c/mpi_shards tests/c/mpi_example
endif
check_PROGRAMS += $(mpi_programs)
EXTRA_DIST += tests/c/mpi_shards.c
tests_c_mpi_shards_CFLAGS = $(AM_CFLAGS) $(MPI_CFLAGS)
tests_c_mpi_shards_LDADD = lib/mpi/librowfold_mpi.la lib/librowfold.la $(MPI_LIBS)
tests_c_mpi_example_SOURCES = examples/shards_mpi.c
tests_c_mpi_example_CPPFLAGS = $(AM_CPPFLAGS) -I$(srcdir)/lib/mpi
tests_c_mpi_example_CFLAGS = $(AM_CFLAGS) $(MPI_CFLAGS)
tests_c_mpi_example_LDADD = $(tests_c_mpi_shards_LDADD)
# Of librowfold_nccl, which finds NCCL as a program that has loaded it does.
nccl_programs =
if HAVE_NCCL
nccl_programs += tests/c/test_nccl
endif
check_PROGRAMS += $(nccl_programs)
TESTS += $(nccl_programs)
EXTRA_DIST += tests/c/test_nccl.c
tests_c_test_nccl_LDADD = lib/nccl/librowfold_nccl.la lib/librowfold.la -ldl $(PTHREAD_LIBS)
LDADD = lib/librowfold.la
tests_c_test_affine_SOURCES = tests/c/test_affine.c cuda/affine.c
tests_c_test_affine_LDADD = lib/libplan.la $(JANSSON_LIBS)
tests_c_test_blocking_SOURCES = tests/c/test_blocking.c lib/cpu/blocking.c
tests_c_test_blocking_CFLAGS = $(AM_CFLAGS) -ftrapv
tests_c_test_blocking_LDADD = lib/libplan.la $(JANSSON_LIBS)
tests_c_test_choose_SOURCES = tests/c/test_choose.c cuda/choose.c cuda/terms.c
tests_c_test_choose_LDADD =
tests_c_test_collapse_LDADD = lib/libplan.la $(JANSSON_LIBS)
tests_c_test_explain_CFLAGS = $(AM_CFLAGS) $(JANSSON_CFLAGS)
tests_c_test_explain_LDADD = lib/libplan.la $(JANSSON_LIBS)
tests_c_test_partials_SOURCES = tests/c/test_partials.c cuda/partials.c
tests_c_test_partials_LDADD =
tests_c_test_passes_SOURCES = tests/c/test_passes.c cuda/passes.c
tests_c_test_passes_LDADD = lib/libplan.la $(JANSSON_LIBS)
tests_c_test_plan_LDADD = lib/libplan.la $(JANSSON_LIBS)
tests_c_test_pool_SOURCES = tests/c/test_pool.c lib/cpu/pool.c
tests_c_test_pool_LDADD =
tests_c_test_vmath_LDADD =
# Compiled as the kernels are, but for the instruction sets: it chooses those itself.
$(tests_c_test_vmath_OBJECTS): override CFLAGS += $(KERNEL_CFLAGS)
tests_c_version_CPPFLAGS = $(AM_CPPFLAGS) -DEXPECTED_VERSION='"$(PACKAGE_VERSION)"'

dist_check_SCRIPTS += tests/abi/abi.sh tests/exports.sh tests/mpi.sh
EXTRA_DIST += tests/abi/growth.suppr tests/abi/librowfold-0.1.abi
EXTRA_DIST += tests/cmake/CMakeLists.txt tests/installed.sh
TESTS += $(public_programs) $(internal_programs) $(dist_check_SCRIPTS)
AM_TESTS_ENVIRONMENT = NM='$(NM_PROGRAM)'; export NM; MPIRUN='$(MPIRUN)'; export MPIRUN; built_with='$(CFLAGS)'; export built_with;

if HAVE_COMPLETION
installed_completions = $(DESTDIR)$(bashcompletiondir)/rowfold $(DESTDIR)$(zshcompletiondir)/_rowfold
if HAVE_FISH_COMPLETION
installed_completions += $(DESTDIR)$(fishcompletiondir)/rowfold.fish
endif
endif

# Against what make install put down; make distcheck runs this too.
installcheck-local:
	srcdir='$(abs_srcdir)' programs='$(public_programs)' VERSION='$(PACKAGE_VERSION)' CC='$(CC)' CFLAGS='$(CFLAGS)' PKG_CONFIG='$(PKG_CONFIG)' PYTHON='$(PYTHON)' \
	MPI_CFLAGS='$(MPI_CFLAGS)' MPI_LIBS='$(MPI_LIBS)' \
	bindir='$(DESTDIR)$(bindir)' includedir='$(DESTDIR)$(includedir)' libdir='$(DESTDIR)$(libdir)' mandir='$(DESTDIR)$(mandir)' \
	pythondir='$(DESTDIR)$(pythondir)' DESTDIR='$(DESTDIR)' completions='$(installed_completions)' $(SHELL) $(srcdir)/tests/installed.sh

# Every Python file, whoever adds it.
EXTRA_DIST += $(wildcard $(srcdir)/tests/*.py $(srcdir)/tests/oracle/*.py)

# The Python tests, on every backend this machine has, with the library and the package of this build.
PYTEST_FLAGS =
check-python: all
	cd $(srcdir) && ROWFOLD_LIBRARY='$(abs_builddir)/lib/.libs/librowfold.so' PYTHONPATH=python $(PYTHON) -m pytest $(PYTEST_FLAGS) tests

# The CUDA kernels, or those named in KERNELS, under the CUDA toolkit's checking tools.
KERNELS =
check-sanitizers: all
	cd $(srcdir) && for tool in memcheck racecheck initcheck synccheck; do \
	  ROWFOLD_LIBRARY='$(abs_builddir)/lib/.libs/librowfold.so' PYTHONPATH=python \
	    compute-sanitizer --tool $$tool --error-exitcode 1 $(PYTHON) tests/sanitize.py $(KERNELS) || exit 1; \
	done
.PHONY: check-python check-sanitizers

# Other compilers, sanitizers, processors and build options, valgrind, fuzzing: about an hour.
check-long:
	cd $(srcdir) && tools/matrix long
.PHONY: check-long

# What tools/fuzz builds, with a clang that has libFuzzer.
fuzz_programs = tests/fuzz/fuzz_chain tests/fuzz/fuzz_file tests/fuzz/fuzz_forward
EXTRA_PROGRAMS = $(fuzz_programs)
noinst_HEADERS += tests/fuzz/fuzz.h
EXTRA_DIST += tests/fuzz/corpus.py tests/mutants.txt tools/fuzz tools/matrix tools/mutate.py tools/soak.py tools/trial.py .clang-tidy
tests_fuzz_fuzz_chain_LDFLAGS = -fsanitize=fuzzer
tests_fuzz_fuzz_file_LDFLAGS = -fsanitize=fuzzer
tests_fuzz_fuzz_forward_LDFLAGS = -fsanitize=fuzzer
fuzz-targets: $(fuzz_programs)
.PHONY: fuzz-targets
