/* SPDX-License-Identifier: MIT */
/* The reader of weight files when the system fails it: the program brings its own open, fstat, mmap, munmap and close
 * in front of the C library's, and each says no in its turn. Every failure has its sentence, and leaves no descriptor
 * open and nothing mapped. */
#define _GNU_SOURCE /* AT_EMPTY_PATH */
#include <rowfold.h>

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#if !defined(SYS_mmap) || defined(__SANITIZE_ADDRESS__)
int main(void) { return 77; } /* mmap2 takes other arguments, and the sanitizer brings its own of these functions */
#else

#include "check.h"
#include "shard.h"

typedef enum fault { NONE, OPEN, FSTAT, MMAP, SHRINK } fault;

static fault next;    /* which call is to fail; SHRINK: fstat finds half the file gone */
static int countdown; /* after so many that succeed */
static int error;     /* with this errno */
static long descriptors, mappings;

static int fails(fault f) { return next == f && !countdown--; }

int open(const char *path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    const int mode = flags & O_CREAT ? va_arg(more, int) : 0;
    va_end(more);
    if (fails(OPEN)) return errno = error, -1;
    const int fd = (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
    descriptors += fd >= 0;
    return fd;
}

int close(int fd) {
    descriptors--;
    return (int)syscall(SYS_close, fd);
}

int fstat(int fd, struct stat *info) {
    if (fails(FSTAT)) return errno = error, -1;
    const int status = fstatat(fd, "", info, AT_EMPTY_PATH);
    if (!status && fails(SHRINK)) info->st_size /= 2;
    return status;
}

void *mmap(void *address, size_t length, int protection, int flags, int fd, off_t offset) {
    if (fd >= 0 && fails(MMAP)) return errno = error, MAP_FAILED;
    void *found = (void *)syscall(SYS_mmap, address, length, protection, flags, fd, offset);
    mappings += fd >= 0 && found != MAP_FAILED;
    return found;
}

int munmap(void *address, size_t length) {
    mappings--;
    return (int)syscall(SYS_munmap, address, length);
}

/* y = the result once the model is loaded, at the second attempt where the first fails. */
static rf_status load(const char *path, float *y) {
    rf_model *model = NULL;
    rf_status status = rf_model_create(&model, &shard_config);
    if (!status) status = rf_model_load_file(model, path, &shard_names);
    next = NONE;
    if (status) CHECK(!rf_model_load_file(model, path, &shard_names), "%s", rf_last_error());
    CHECK(!rf_model_forward(model, shard_x, 1, y), "%s", rf_last_error());
    rf_model_destroy(model);
    return status;
}

static const struct {
    const char *label;
    fault fault;
    int countdown, error;
    rf_status status;
    const char *says; /* before what the C library calls the error */
} faults[] = {
    {"no permission", OPEN, 0, EACCES, RF_IO_ERROR, "cannot be opened"},
    {"too many open files", OPEN, 0, EMFILE, RF_IO_ERROR, "cannot be opened"},
    {"a disk that fails", FSTAT, 0, EIO, RF_IO_ERROR, "its size cannot be read"},
    {"nothing to be mapped", MMAP, 0, ENODEV, RF_IO_ERROR, "cannot be mapped"},
    {"no memory to map it", MMAP, 0, ENOMEM, RF_OUT_OF_MEMORY, "cannot be mapped"},
};

static void opening(const char *path) {
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        /* Of an index first the index, then its shard. */
        for (int later = 0; later <= (path == index_path); later++) {
            float y = 0;
            next = faults[i].fault, countdown = faults[i].countdown + later, error = faults[i].error;
            const rf_status status = load(path, &y);
            CHECK(status == faults[i].status, "%s, %s: status %d", path, faults[i].label, (int)status);
            CHECK(y == shard_y, "%s, %s: y is %g", path, faults[i].label, (double)y);
        }
    }
}

/* The sentences, and that the handle stays as it was. */
static void sentences(const char *path) {
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        rf_file *poison = (rf_file *)(uintptr_t)0x1234, *file = poison;
        next = faults[i].fault, countdown = faults[i].countdown, error = faults[i].error;
        const rf_status status = rf_file_open(&file, path);
        next = NONE;
        CHECK(status == faults[i].status && file == poison, "%s: status %d", faults[i].label, (int)status);
        char expected[512];
        snprintf(expected, sizeof expected, "%s: %s: %s", path, faults[i].says, strerror(faults[i].error));
        CHECK(!strcmp(rf_last_error(), expected), "%s: \"%s\", expected \"%s\"", faults[i].label, rf_last_error(),
            expected);
    }
}

/* Between opening and reading: the size is asked for once a file at opening, then once a tensor. */
static void changing(void) {
    float y = 0;
    for (int tensor = 0; tensor < 2; tensor++) {
        next = SHRINK, countdown = 1 + tensor;
        CHECK(load(shard_path, &y) == RF_IO_ERROR, "tensor %d of a file that shrank", tensor);
        next = FSTAT, countdown = 1 + tensor, error = EIO;
        CHECK(load(shard_path, &y) == RF_IO_ERROR, "tensor %d of a file whose size cannot be read any more", tensor);
    }
    rf_file *file = NULL;
    rf_tensor_info info = {.size = sizeof info};
    CHECK(!rf_file_open(&file, shard_path), "%s", rf_last_error());
    next = SHRINK, countdown = 0;
    CHECK(rf_file_find(file, "w", &info) == RF_IO_ERROR && strstr(rf_last_error(), "shrank from "), "%s",
        rf_last_error());
    next = FSTAT, countdown = 0, error = EIO;
    CHECK(rf_file_tensor(file, 0, &info) == RF_IO_ERROR && strstr(rf_last_error(), "its size cannot be read"), "%s",
        rf_last_error());
    next = NONE;
    CHECK(!info.data, "info was written on failure");
    CHECK(!rf_file_find(file, "w", &info) && info.data, "a file that is whole again: %s", rf_last_error());
    rf_file_close(file);
}

int main(void) {
    write_shard();
    const long before = descriptors, mapped = mappings;
    opening(shard_path);
    opening(index_path);
    sentences(shard_path);
    sentences(index_path);
    changing();
    CHECK(descriptors == before, "%ld descriptors were left open", descriptors - before);
    CHECK(mappings == mapped, "%ld files were left mapped", mappings - mapped);
    remove_shard();
    return failures != 0;
}
#endif
