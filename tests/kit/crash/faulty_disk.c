/* A disk that fails as asked, for whatever program this is preloaded into.
 *
 *   FAULTY_MATCH=.seg      only files whose path contains this
 *   FAULTY_SYNC=2          the 2nd fdatasync of such a file fails with EIO, all others work
 *   FAULTY_SYNC_MS=5000    every fdatasync of such a file takes this long
 *   FAULTY_READ=3          from the 3rd pread of such a file on, EIO
 *   FAULTY_SHORT=100       every pwritev2 (which Python writes with) of such a file writes at most this many bytes
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static long asked(const char *name) {
    const char *text = getenv(name);
    return text ? atol(text) : 0;
}

static int matches(int fd) {
    char link[64], path[4096];
    const char *wanted = getenv("FAULTY_MATCH");
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (!wanted || length < 0) return 0;
    path[length] = 0;
    return strstr(path, wanted) != NULL;
}

int fdatasync(int fd) {
    static long count;
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    if (!matches(fd)) return real(fd);
    if (asked("FAULTY_SYNC_MS")) usleep(asked("FAULTY_SYNC_MS") * 1000);
    if (++count == asked("FAULTY_SYNC")) return errno = EIO, -1;
    return real(fd);
}

static ssize_t pread_checked(int fd, void *to, size_t length, off_t offset, const char *name) {
    static long count;
    ssize_t (*real)(int, void *, size_t, off_t) =
        (ssize_t (*)(int, void *, size_t, off_t))dlsym(RTLD_NEXT, name);
    if (asked("FAULTY_READ") && matches(fd) && ++count >= asked("FAULTY_READ"))
        return errno = EIO, -1;
    return real(fd, to, length, offset);
}

ssize_t pread(int fd, void *to, size_t length, off_t offset) {
    return pread_checked(fd, to, length, offset, "pread");
}

ssize_t pread64(int fd, void *to, size_t length, off_t offset) {
    return pread_checked(fd, to, length, offset, "pread64");
}

static ssize_t cut(int fd, const struct iovec *parts, int count, off_t offset, int flags,
                   const char *name) {
    size_t most = (size_t)asked("FAULTY_SHORT");
    if (most && matches(fd)) {
        while (count > 1 && parts->iov_len == 0) parts++, count--;
        return pwrite(fd, parts->iov_base, parts->iov_len < most ? parts->iov_len : most, offset);
    }
    ssize_t (*real)(int, const struct iovec *, int, off_t, int) =
        (ssize_t (*)(int, const struct iovec *, int, off_t, int))dlsym(RTLD_NEXT, name);
    return real(fd, parts, count, offset, flags);
}

ssize_t pwritev2(int fd, const struct iovec *parts, int count, off_t offset, int flags) {
    return cut(fd, parts, count, offset, flags, "pwritev2");
}

ssize_t pwritev64v2(int fd, const struct iovec *parts, int count, off_t offset, int flags) {
    return cut(fd, parts, count, offset, flags, "pwritev64v2");
}
