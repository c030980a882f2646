/* count.h - number of elements of an array. */
#ifndef FERRY_COMMON_COUNT_H
#define FERRY_COMMON_COUNT_H

/* For an array, not for a pointer to one. */
#define COUNT(array) (sizeof(array) / sizeof *(array))

#endif
