/* engine_version.c - the version of libferry_engine.so: the Makefile's, not that
 * of the program which loads it. */
extern const char *const ferry_engine_version;

const char *const ferry_engine_version = FERRY_VERSION;
