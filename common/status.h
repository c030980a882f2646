/* status.h - one status for every call that can fail, and its message.
 *
 * The numbers are the exit codes of the program. A function that can fail
 * returns enum status and takes struct error *err last; err is written only on
 * failure and can be printed as it stands. */
#ifndef FERRY_COMMON_STATUS_H
#define FERRY_COMMON_STATUS_H

enum status {
    OK = 0,
    DIFFERENT = 1, /* compared, and different */
    ERR_USAGE = 2, /* the command line */
    ERR_UNSUPPORTED =
        3,      /* unsupported, unmapped or missing tensors; shapes that contradict the config */
    ERR_IO = 4, /* input/output, permissions, space */
    ERR_CORRUPT = 5,       /* the source breaks the rules of its format */
    ERR_MEMORY = 6,        /* too little memory, or a limit that is too low */
    ERR_EXISTS = 7,        /* the destination exists or is busy */
    ERR_DEVICE = 8,        /* a GPU */
    ERR_RANK = 9,          /* a rank was lost or disagrees */
    ERR_NUMERIC = 10,      /* NaN or Inf */
    ERR_OURS = 70,         /* a bug of Ferry */
    ERR_INTERRUPTED = 130, /* SIGINT or SIGTERM */
};

struct error {
    enum status code;
    char text[1024];
};

#define MUST_CHECK __attribute__((warn_unused_result))
#define PRINTF_LIKE(fmt_at, first) __attribute__((format(printf, fmt_at, first)))

#ifdef __cplusplus
extern "C" {
#endif

/* Fills err and returns code. err may be NULL. */
MUST_CHECK enum status fail(struct error *err, enum status code, const char *fmt, ...)
    PRINTF_LIKE(3, 4);

/* As fail(), with ": " and the text of errno at the end. The code is ERR_MEMORY
 * for ENOMEM, else `code`. */
MUST_CHECK enum status fail_errno(struct error *err, enum status code, const char *fmt, ...)
    PRINTF_LIKE(3, 4);

/* Puts the text and ": " in front of err's message; returns its code. */
MUST_CHECK enum status fail_in(struct error *err, const char *fmt, ...) PRINTF_LIKE(2, 3);

#ifdef __cplusplus
}
#endif

/* Returns a status that is not OK from the calling function. */
#define TRY(call)                                                                                  \
    do {                                                                                           \
        enum status try_status_ = (call);                                                          \
        if (try_status_) return try_status_;                                                       \
    } while (0)

#endif
