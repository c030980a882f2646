# make            the program, at build/ferry, and the library
# make test       all tests that need no other program;  make asan: the same under the sanitizers
# make help       every target
CC ?= gcc
BUILD ?= build
PREFIX ?= /usr/local
WERROR ?=

WARN = -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wvla -Wundef -Wstrict-prototypes \
       -Wmissing-prototypes -Wwrite-strings $(WERROR)
OPTIMIZE ?= -O2
CFLAGS_ALL = -std=c11 -D_GNU_SOURCE -I. -g $(OPTIMIZE) -pthread $(WARN) $(CFLAGS)
LIBS = -lcjson -lyaml -ldeflate -lz -lm

FOLDERS = common formats kernels/cpu ckpt convert
SOURCES = $(filter-out %_test.c, $(foreach f, $(FOLDERS), $(wildcard $(f)/*.c)))
TESTS = $(patsubst %.c, $(BUILD)/%, $(foreach f, $(FOLDERS), $(wildcard $(f)/*_test.c)))
OBJECTS = $(SOURCES:%.c=$(BUILD)/%.o)

.PHONY: all test clean
all: $(BUILD)/ferry

$(BUILD)/libferry.a: $(OBJECTS)
	rm -f $@ && $(AR) rcs $@ $^

$(BUILD)/ferry: $(BUILD)/ferry.o $(BUILD)/libferry.a
	$(CC) $(CFLAGS_ALL) $(LDFLAGS) -o $@ $^ $(LIBS)

$(BUILD)/%_test: $(BUILD)/%_test.o $(BUILD)/libferry.a
	$(CC) $(CFLAGS_ALL) $(LDFLAGS) -o $@ $^ -lcmocka $(LIBS)

$(BUILD)/%.o: %.c Makefile
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) -MMD -MP -c -o $@ $<

-include $(wildcard $(BUILD)/*.d $(BUILD)/*/*.d $(BUILD)/*/*/*.d)

test: $(TESTS)
	@set -e; for t in $^; do $$t; done

clean:
	rm -rf $(BUILD)
