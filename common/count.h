/* count.h - how many elements an array has. */
#ifndef FERRY_COMMON_COUNT_H
#define FERRY_COMMON_COUNT_H

/* Of an array, not of a pointer to one. */
#define COUNT(array) (sizeof(array) / sizeof *(array))

#endif
