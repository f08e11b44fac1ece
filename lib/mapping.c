/* SPDX-License-Identifier: MIT */
#include "mapping.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "error.h"

rf_status rfi_mapping_open(const char *path, rfi_mapping *file) {
    struct stat info;
    *file = (rfi_mapping){.path = strdup(path), .fd = -1};
    if (!file->path) return rfi_error(RF_OUT_OF_MEMORY, "%s: no memory to open it", path);
    /* Not to wait for the other end of a pipe, which is no regular file anyway. */
    file->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file->fd < 0) return rfi_error(RF_IO_ERROR, "%s: cannot be opened: %s", path, strerror(errno));
    if (fstat(file->fd, &info)) return rfi_error(RF_IO_ERROR, "%s: its size cannot be read: %s", path, strerror(errno));
    if (!S_ISREG(info.st_mode)) return rfi_error(RF_IO_ERROR, "%s: not a regular file", path);
    if (!info.st_size) return RF_OK;
    void *bytes = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_SHARED, file->fd, 0);
    if (bytes == MAP_FAILED)
        return rfi_error(
            errno == ENOMEM ? RF_OUT_OF_MEMORY : RF_IO_ERROR, "%s: cannot be mapped: %s", path, strerror(errno));
    file->bytes = bytes;
    file->size = info.st_size;
    return RF_OK;
}

void rfi_mapping_close(rfi_mapping *file) {
    if (file->bytes) munmap((void *)file->bytes, (size_t)file->size);
    if (file->fd >= 0) close(file->fd);
    free(file->path);
}

rf_status rfi_mapping_check(const rfi_mapping *file) {
    struct stat info;
    if (fstat(file->fd, &info))
        return rfi_error(RF_IO_ERROR, "%s: its size cannot be read: %s", file->path, strerror(errno));
    if (info.st_size < file->size)
        return rfi_error(RF_IO_ERROR, "%s: shrank from %lld to %lld bytes since it was opened", file->path,
            (long long)file->size, (long long)info.st_size);
    return RF_OK;
}
