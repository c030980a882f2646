/* version.h - version of this Ferry. */
#ifndef FERRY_COMMON_VERSION_H
#define FERRY_COMMON_VERSION_H

#define FERRY_VERSION "0.1.0"

#endif
