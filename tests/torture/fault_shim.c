/* A shim for LD_PRELOAD: the n-th of the system calls that a save makes below a folder fails, or kills the process.
 *
 * fault_arm(folder, n, action, error) begins to count: calls that change something below the folder, by a path or by a
 * descriptor that was opened to write, and fsync. fault_disarm() ends it and returns how many there were. Actions: 0
 * counts only; 1 fails once with `error`; 2 fails from the n-th call on, as a full disk does; 3 writes half of what it
 * is given, once; 4 SIGKILL instead of the call; 5 SIGKILL after it. One thread at a time. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { kFds = 4096 };
enum { kReads = 1, kWrites = 2 };
enum { kCount = 0, kOnce = 1, kFrom = 2, kHalf = 3, kKillBefore = 4, kKillAfter = 5 };
static char folder_[4096];
static int length_, action_, error_;
static long at_, count_, hit_;
static unsigned char ours_[kFds];

void fault_arm(const char* folder, long n, int action, int error) {
  snprintf(folder_, sizeof folder_, "%s/", folder);
  length_ = (int)strlen(folder_);
  at_ = n;
  action_ = action;
  error_ = error;
  count_ = hit_ = 0;
}

long fault_disarm(void) {
  length_ = 0;
  return count_;
}

/* Whether the fault was met. */
long fault_hit(void) { return hit_; }

static int is_below(const char* path) {
  return length_ > 0 && path != NULL && strncmp(path, folder_, (size_t)length_) == 0;
}
static int is_ours(int fd) { return length_ > 0 && fd >= 0 && fd < kFds && ours_[fd]; }
static int is_written(int fd) { return is_ours(fd) && ours_[fd] == kWrites; }

static void die(void) {
  kill(getpid(), SIGKILL);
  for (;;) {
    pause();
  }
}

/* Counts a call: 1 where it must fail, with errno set; 2 where it is to be cut in half; 3 where it is the last one. */
static int meet(void) {
  ++count_;
  const int here = count_ == at_;
  if (!here && !(action_ == kFrom && count_ > at_)) {
    return 0;
  }
  ++hit_;
  switch (action_) {
    case kOnce:
    case kFrom: errno = error_; return 1;
    case kHalf: return 2;
    case kKillBefore: die(); return 0;
    case kKillAfter: return 3;
    default: return 0;
  }
}

#define REAL(type, name, ...)       \
  static type (*real)(__VA_ARGS__); \
  if (real == NULL) *(void**)(&real) = dlsym(RTLD_NEXT, name)

static int after(int met, int result) {
  if (met == 3) {
    die();
  }
  return result;
}

static void note(int fd, int ours) {
  if (fd >= 0 && fd < kFds) {
    ours_[fd] = (unsigned char)ours;
  }
}

#define OPEN(name, before, pass)                           \
  {                                                        \
    mode_t mode = 0;                                       \
    if (flags & O_CREAT) {                                 \
      va_list rest;                                        \
      va_start(rest, flags);                               \
      mode = (mode_t)va_arg(rest, int);                    \
      va_end(rest);                                        \
    }                                                      \
    REAL(int, name, before const char*, int, ...);         \
    const int writes = (flags & (O_WRONLY | O_RDWR)) != 0; \
    const int below = is_below(path);                      \
    const int met = below && writes ? meet() : 0;          \
    if (met == 1) return -1;                               \
    const int fd = real pass;                              \
    note(fd, below ? (writes ? kWrites : kReads) : 0);     \
    return after(met, fd);                                 \
  }
#define NOTHING
#define DIR_FD int,
int open(const char* path, int flags, ...)
    OPEN("open", NOTHING, (path, flags, mode)) int open64(const char* path, int flags, ...)
        OPEN("open64", NOTHING, (path, flags, mode)) int openat(int dir, const char* path, int flags, ...)
            OPEN("openat", DIR_FD, (dir, path, flags, mode)) int openat64(int dir, const char* path, int flags, ...)
                OPEN("openat64", DIR_FD, (dir, path, flags, mode))

                    ssize_t write(int fd, const void* bytes, size_t n) {
  REAL(ssize_t, "write", int, const void*, size_t);
  const int met = is_ours(fd) ? meet() : 0;
  if (met == 1) return -1;
  const ssize_t done = real(fd, bytes, met == 2 && n > 1 ? n / 2 : n);
  return after(met, 0) + done;
}
ssize_t pwrite64(int fd, const void* bytes, size_t n, off64_t at) {
  REAL(ssize_t, "pwrite64", int, const void*, size_t, off64_t);
  const int met = is_ours(fd) ? meet() : 0;
  if (met == 1) return -1;
  const ssize_t done = real(fd, bytes, met == 2 && n > 1 ? n / 2 : n, at);
  return after(met, 0) + done;
}
ssize_t writev(int fd, const struct iovec* parts, int n) {
  REAL(ssize_t, "writev", int, const struct iovec*, int);
  const int met = is_ours(fd) ? meet() : 0;
  if (met == 1) return -1;
  const ssize_t done = real(fd, parts, met == 2 && n > 1 ? n / 2 : n);
  return after(met, 0) + done;
}

#define ON_FD(type, name, declared, types, pass) \
  type name declared {                           \
    REAL(type, #name, types);                    \
    const int met = is_ours(fd) ? meet() : 0;    \
    if (met == 1) return -1;                     \
    return after(met, real pass);                \
  }
#define TYPES(...) __VA_ARGS__
ON_FD(int, fsync, (int fd), TYPES(int), (fd))
ON_FD(int, fdatasync, (int fd), TYPES(int), (fd))
ON_FD(int, ftruncate64, (int fd, off64_t n), TYPES(int, off64_t), (fd, n))

/* A close that fails has closed. */
int close(int fd) {
  REAL(int, "close", int);
  const int met = is_written(fd) ? meet() : 0;
  const int error = errno, closed = real(fd);
  note(fd, 0);
  if (met == 1) {
    errno = error;
    return -1;
  }
  return after(met, closed);
}

#define ON_PATH(name, declared, types, below, pass) \
  int name declared {                               \
    REAL(int, #name, types);                        \
    const int met = is_below(below) ? meet() : 0;   \
    if (met == 1) return -1;                        \
    return after(met, real pass);                   \
  }
ON_PATH(rename, (const char* from, const char* to), TYPES(const char*, const char*), to, (from, to))
ON_PATH(renameat, (int a, const char* from, int b, const char* to), TYPES(int, const char*, int, const char*), to,
        (a, from, b, to))
ON_PATH(unlink, (const char* path), TYPES(const char*), path, (path))
ON_PATH(unlinkat, (int dir, const char* path, int flags), TYPES(int, const char*, int), path, (dir, path, flags))
ON_PATH(mkdir, (const char* path, mode_t mode), TYPES(const char*, mode_t), path, (path, mode))
ON_PATH(rmdir, (const char* path), TYPES(const char*), path, (path))
