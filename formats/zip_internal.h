/* zip_internal.h - the byte layout of zip, once for reader and writer.
 *
 * Numbers are little-endian. Names: PKWARE APPNOTE 6.3. */
#ifndef FERRY_FORMATS_ZIP_INTERNAL_H
#define FERRY_FORMATS_ZIP_INTERNAL_H

#include "formats/zip.h"

enum { /* before each entry's data; then name and extra fields */
       LOCAL_SIGNATURE = 0x04034B50,
       LOCAL_VERSION = 4,
       LOCAL_FLAGS = 6,
       LOCAL_METHOD = 8,
       LOCAL_DATE = 12,
       LOCAL_CRC = 14,
       LOCAL_PACKED = 18,
       LOCAL_SIZE = 22,
       LOCAL_NAME = 26,
       LOCAL_EXTRA = 28,
       LOCAL_BYTES = 30,
};
enum { /* a row of the directory; then name, extra fields, comment */
       ROW_SIGNATURE = 0x02014B50,
       ROW_MADE_BY = 4,
       ROW_VERSION = 6,
       ROW_FLAGS = 8,
       ROW_METHOD = 10,
       ROW_DATE = 14,
       ROW_CRC = 16,
       ROW_PACKED = 20,
       ROW_SIZE = 24,
       ROW_NAME = 28,
       ROW_EXTRA = 30,
       ROW_COMMENT = 32,
       ROW_DISK = 34,
       ROW_OFFSET = 42,
       ROW_BYTES = 46,
};
enum { /* the end record; then the comment */
       END_SIGNATURE = 0x06054B50,
       END_DISK = 4,
       END_DIRECTORY_DISK = 6,
       END_DISK_COUNT = 8,
       END_COUNT = 10,
       END_DIRECTORY_BYTES = 12,
       END_DIRECTORY_OFFSET = 16,
       END_COMMENT = 20,
       END_BYTES = 22,
};
enum { /* its 64-bit form; a locator right before the end record has its offset */
       END64_SIGNATURE = 0x06064B50,
       END64_REST = 4, /* bytes that follow this field */
       END64_MADE_BY = 12,
       END64_VERSION = 14,
       END64_DISK = 16,
       END64_DIRECTORY_DISK = 20,
       END64_DISK_COUNT = 24,
       END64_COUNT = 32,
       END64_DIRECTORY_BYTES = 40,
       END64_DIRECTORY_OFFSET = 48,
       END64_BYTES = 56,
       LOCATOR_SIGNATURE = 0x07064B50,
       LOCATOR_DISK = 4,
       LOCATOR_OFFSET = 8,
       LOCATOR_DISKS = 16,
       LOCATOR_BYTES = 20,
};
enum {
    EXTRA_HEADER_BYTES = 4, /* u16 id, u16 length */
    EXTRA_ZIP64 = 1,
    EXTRA_PADDING = 0x4246, /* "FB" */
    METHOD_STORED = 0,
    METHOD_DEFLATED = 8,
    FLAG_ENCRYPTED = 1,
    VERSION_PLAIN = 20,
    VERSION_ZIP64 = 45,
    DATE_1980 = 0x21,
    DATA_ALIGNMENT = 64,
};
static const uint32_t IN_ZIP64 = 0xFFFFFFFF; /* in a 32-bit field: see the 64-bit field */
static const uint16_t COUNT_IN_ZIP64 = 0xFFFF;

static inline uint64_t get_le(const unsigned char *p, unsigned bytes)
{
    uint64_t v = 0;
    for (unsigned i = bytes; i-- > 0;)
        v = v << 8 | p[i];
    return v;
}

static inline void put_le(unsigned char *p, uint64_t v, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++, v >>= 8)
        p[i] = (unsigned char)v;
}

#endif
