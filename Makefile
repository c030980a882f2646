# make            the program at build/ferry, and the library it is made of
# make help       every target, with a line on each
#
# CC, CFLAGS, LDFLAGS, PREFIX and DESTDIR mean what they always do; BUILD is the build folder; V=1
# shows whole command lines.
ifeq ($(origin CC), default)
CC = gcc
endif
BUILD ?= build
PREFIX ?= /usr/local
DESTDIR ?=
OPTIMIZE ?= -O2
ifeq ($(MAKELEVEL), 0)
MAKEFLAGS += -j$(shell nproc) --no-print-directory
endif

# Debian's packages: the program needs the first line, its tests and checks the others.
PACKAGES = gcc make libc6-dev libcjson-dev libyaml-dev libdeflate-dev libssl-dev zlib1g-dev
TEST_PACKAGES = $(PACKAGES) libcmocka-dev clang libclang-rt-14-dev clang-format shellcheck time valgrind \
                strace python3 python3-venv ca-certificates

FOLDERS = common formats kernels/cpu ckpt convert validate
WARN = -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wvla -Wundef -Wstrict-prototypes \
       -Wmissing-prototypes -Wwrite-strings
# CFLAGS and LDFLAGS are the user's
FLAGS = -std=c11 -D_GNU_SOURCE -I. -g $(OPTIMIZE) -pthread $(WARN) $(CFLAGS)
LIBS = -lcjson -lyaml -ldeflate -lcrypto -lz -lm
# $(call say,WHAT) in front of a command shows two words in place of it
say = $(if $(V),,@printf '  %-5s %s\n' $(1) $@;)
SANITIZE = -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer

SOURCES = $(filter-out %_test.c, $(foreach f, $(FOLDERS), $(wildcard $(f)/*.c)))
OBJECTS = $(SOURCES:%.c=$(BUILD)/%.o) $(BUILD)/embedded_models.o
MODELS = $(wildcard convert/models/*.json)
UNIT_TESTS = $(patsubst %.c, $(BUILD)/%, \
               $(foreach f, $(FOLDERS) tests tests/golden, $(wildcard $(f)/*_test.c)))
SHELL_TESTS = $(wildcard tests/*/*_test.sh)
FUZZERS = $(patsubst %.c, $(BUILD)/%, $(wildcard tests/fuzz/*_fuzz.c))
FORMATTED = $(wildcard *.c $(FOLDERS:=/*.[ch]) tests/*.[ch] tests/*/*.[ch])

.PHONY: all help deps deps-build test asan fuzz fuzzers fuzz-quick fuzz-long interop bench \
        bench-quick demo docs faults kills late valgrind install uninstall fmt fmt-check clean
.SECONDARY:

all: $(BUILD)/ferry ## the program (the default)

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 13

# ---- the program ----

$(BUILD)/ferry: $(BUILD)/ferry.o $(BUILD)/libferry.a
	$(call say,LINK)$(CC) $(FLAGS) $(LDFLAGS) -o $@ $^ $(LIBS)

$(BUILD)/libferry.a: $(OBJECTS)
	$(call say,AR)rm -f $@ && $(AR) rcs $@ $^

# Model maps become part of the program: convert/embedded.h.
$(BUILD)/embedded_models.c: $(MODELS) convert/embed.sh
	@mkdir -p $(@D)
	$(call say,EMBED)sh convert/embed.sh $(MODELS) > $@

$(BUILD)/embedded_models.o: $(BUILD)/embedded_models.c
	$(call say,CC)$(CC) $(FLAGS) -Wno-overlength-strings -c -o $@ $<

$(BUILD)/kernels/%.o: OPTIMIZE = -O3

$(BUILD)/%.o: %.c Makefile
	@mkdir -p $(@D)
	$(call say,CC)$(CC) $(FLAGS) -MMD -MP -c -o $@ $<

-include $(OBJECTS:.o=.d) $(BUILD)/ferry.d $(UNIT_TESTS:=.d) $(FUZZERS:=.d)

docs: $(BUILD)/ferry.1 $(BUILD)/ferry.bash ## its man page and bash completion

$(BUILD)/ferry.1: $(BUILD)/ferry
	$< --man-page > $@

$(BUILD)/ferry.bash: $(BUILD)/ferry
	$< --bash-completion > $@

install: all docs ## program, man page and completion below DESTDIR/PREFIX
	install -D -m 755 $(BUILD)/ferry $(DESTDIR)$(PREFIX)/bin/ferry
	install -D -m 644 $(BUILD)/ferry.1 $(DESTDIR)$(PREFIX)/share/man/man1/ferry.1
	install -D -m 644 $(BUILD)/ferry.bash \
	    $(DESTDIR)$(PREFIX)/share/bash-completion/completions/ferry

uninstall: ## takes them away again
	rm -f $(DESTDIR)$(PREFIX)/bin/ferry $(DESTDIR)$(PREFIX)/share/man/man1/ferry.1 \
	    $(DESTDIR)$(PREFIX)/share/bash-completion/completions/ferry

deps: ## Debian's packages for the program and everything below (deps-build: the program alone)
	@sh tests/deps.sh $(TEST_PACKAGES)

deps-build:
	@sh tests/deps.sh $(PACKAGES)

# ---- tests: each prints a last line of sums ----

$(BUILD)/%_test: $(BUILD)/%_test.o $(BUILD)/libferry.a
	$(call say,LINK)$(CC) $(FLAGS) $(LDFLAGS) -o $@ $^ -lcmocka $(LIBS)

test: $(BUILD)/ferry $(UNIT_TESTS) ## unit tests and those of the command line
	@sh tests/run.sh $(BUILD)/ferry $(UNIT_TESTS) $(SHELL_TESTS)

asan: ## the same under address and undefined-behaviour sanitizers
	@$(MAKE) test BUILD=$(BUILD)/asan OPTIMIZE=-O1 CFLAGS="$(CFLAGS) $(SANITIZE)"

$(BUILD)/%_fuzz: $(BUILD)/%_fuzz.o $(BUILD)/libferry.a
	$(call say,LINK)$(CC) $(FLAGS) -fsanitize=fuzzer $(LDFLAGS) -o $@ $^ -lcmocka $(LIBS)

fuzzers: $(FUZZERS)

fuzz: ## builds the fuzz targets, with clang
	@$(MAKE) fuzzers BUILD=$(BUILD)/fuzz CC=clang OPTIMIZE=-O1 \
	    CFLAGS="$(CFLAGS) $(SANITIZE) -fsanitize=fuzzer-no-link"

fuzz-quick: fuzz ## runs each of them for 20 seconds
	@sh tests/fuzz/run.sh $(BUILD)/fuzz $(or $(SECONDS), 20)

fuzz-long: fuzz ## runs each of them for SECONDS=600
	@sh tests/fuzz/run.sh $(BUILD)/fuzz $(or $(SECONDS), 600)

$(BUILD)/inject.so: tests/faults/inject.c
	$(call say,LINK)$(CC) -std=c11 -D_GNU_SOURCE $(WARN) -O1 -shared -fPIC -o $@ $< -ldl

kills: all ## kills COUNT=1000 conversions at random moments, and goes on with them
	@sh tests/faults/kills.sh $(BUILD)/ferry $(or $(COUNT), 1000)

faults: all $(BUILD)/inject.so ## makes each EVERY=1st system call of a conversion fail
	@sh tests/faults/faults.sh $(BUILD)/ferry $(BUILD)/inject.so $(or $(EVERY), 1)

late: all $(BUILD)/inject.so ## two processes that see each other's files late
	@sh tests/faults/late.sh $(BUILD)/ferry $(BUILD)/inject.so

valgrind: all ## one conversion there and back under valgrind
	@sh tests/faults/valgrind.sh $(BUILD)/ferry

# ---- beside other programs ----

interop: all ## transformers and Megatron-Core read what we write, and we read what they write
	@sh tests/interop.sh $(BUILD)/ferry

bench: all ## wall time and memory beside cp and the peers (bench-quick: smaller models)
	@sh tests/bench/bench.sh $(BUILD)/ferry

bench-quick: all
	@sh tests/bench/bench.sh $(BUILD)/ferry quick

demo: ## installs what the program needs, builds it and shows a round trip
	@$(MAKE) deps-build
	@$(MAKE) all
	@sh tests/demo.sh $(BUILD)/ferry

# ---- the tree ----

fmt: ## clang-format over all C
	clang-format -i $(FORMATTED)

fmt-check: ## what that would change, and what shellcheck says of the scripts
	@clang-format --dry-run --Werror $(FORMATTED)
	@shellcheck -x -P SCRIPTDIR .ci/run $(wildcard convert/*.sh tests/*.sh tests/*/*.sh)

clean: ## removes the build folder
	rm -rf $(BUILD)
