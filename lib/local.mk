include_HEADERS = lib/rowfold.h
lib_LTLIBRARIES += lib/librowfold.la

lib_librowfold_la_SOURCES = \
	lib/error.c \
	lib/version.c
noinst_HEADERS += \
	lib/backend.h \
	lib/chain.h \
	lib/dtype.h \
	lib/error.h \
	lib/ops.def \
	lib/ops.h \
	lib/ops_typed.h \
	lib/plan.h \
	lib/reductions.def \
	lib/status.def \
	lib/vmath.h
lib_librowfold_la_CFLAGS = $(AM_CFLAGS) $(JANSSON_CFLAGS)
lib_librowfold_la_LDFLAGS = -version-info $(ROWFOLD_VERSION_INFO) -no-undefined -export-symbols-regex '^rf_' $(DEFS_LDFLAGS)
lib_librowfold_la_LIBADD = cuda/libcuda.la $(CUDA_LIBS) $(JANSSON_LIBS) $(PTHREAD_LIBS)
