# make            the program at build/ferry, and the library it is made of
# make help       every target, with a line on each
#
# kernels/cuda/cuda.mk builds for GPUs, python/python.mk the wheel, tests/tests.mk has tests and other checks.
#
# CC, CFLAGS, LDFLAGS, PREFIX and DESTDIR mean what they always do; BUILD is the build folder; V=1
# shows whole command lines.
ifeq ($(origin CC), default)
CC = gcc
endif
MACHINE := $(shell $(CC) -dumpmachine 2>/dev/null)
BUILD ?= build
PREFIX ?= /usr/local
DESTDIR ?=
OPTIMIZE ?= -O2
ifeq ($(MAKELEVEL), 0)
MAKEFLAGS += -j$(shell nproc) --no-print-directory
endif

# Debian's packages: the program needs the first of these, `make test` the second, and all checks the third.
PACKAGES = gcc make libc6-dev libcjson-dev libyaml-dev libdeflate-dev libssl-dev zlib1g-dev \
           libopenblas-openmp-dev
TEST_PACKAGES = $(PACKAGES) libcmocka-dev procps python3 time
CHECK_PACKAGES = $(TEST_PACKAGES) g++ libopenmpi-dev openmpi-bin clang libclang-rt-dev lld clang-format shellcheck \
                 valgrind strace python3-venv ca-certificates

# Folders with sources. Those of libferry_engine.so, which the program loads when it computes, are ENGINE_FOLDERS.
SOURCE_FOLDERS := $(filter-out tests% $(BUILD)% build%, $(patsubst %/,%,$(sort $(dir \
                    $(wildcard */*.c */*/*.c */*/*/*.c */*/*/*/*.c)))))
ENGINE_FOLDERS = $(filter kernels kernels/cpu/ops train/%, $(filter-out train/cli, $(SOURCE_FOLDERS)))
FOLDERS = $(filter-out $(ENGINE_FOLDERS), $(SOURCE_FOLDERS))
WARN = -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wvla -Wundef -Wstrict-prototypes \
       -Wmissing-prototypes -Wwrite-strings
# Hardened: it reads files of others. glibc's checks want optimized code; sanitizers have their own.
LAST_OPTIMIZE = $(lastword -O0 $(filter -O%, $(OPTIMIZE) $(CFLAGS)))
FORTIFY = $(if $(filter -O0, $(LAST_OPTIMIZE))$(findstring -fsanitize, $(CFLAGS))$(findstring _FORTIFY_SOURCE, $(CFLAGS)),, \
            -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2)
HARDEN = -fPIE -fstack-protector-strong $(FORTIFY)
HARDEN_LINK = -Wl,-z,relro,-z,now
# Builds in two folders are the same, byte by byte.
SAME_PATHS = '-ffile-prefix-map=$(CURDIR)=.'
# CFLAGS and LDFLAGS are the user's
FLAGS = -std=c11 -D_GNU_SOURCE -I. -g $(OPTIMIZE) -pthread $(WARN) $(HARDEN) $(SAME_PATHS) $(CFLAGS)
LIBS = -lcjson -lyaml -ldeflate -lcrypto -lz -lm -ldl # dlopen() before glibc 2.34
# $(call say,PHASE) in front of a command hides it, and prints the phase where it is the first of it.
# $(call compiling,FILE) does it for a file of a folder.
empty =
said = said.$(subst $(empty) ,-,$(1))
say = $(if $(V),,@$(if $($(said)),,$(eval $(said) := yes)$(info $(1))))
folder = $(patsubst %/,%,$(patsubst ./,$(1),$(dir $(1))))
compiling = $(call say,compiling $(if $(filter %_test.c, $(1)),the tests of )$(call folder,$(1)))
SANITIZE = -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer

SOURCES = $(filter-out %_test.c, $(foreach f, $(FOLDERS), $(wildcard $(f)/*.c)))
# Ops are compiled for each type of element and for what CPUs have: any (v1); of x86-64 ones AVX2, FMA and F16C;
# AVX-512 with instructions for bf16; AMX beside these, where the compiler knows it (gcc 11 and later).
OPS = $(filter-out %_test.c, $(wildcard kernels/cpu/ops/*.c))
AMX := $(shell $(CC) -mamx-bf16 -E -x c /dev/null >/dev/null 2>&1 && echo bf16.amx)
OP_VARIANTS = f32.v1 f64.v1 bf16.v1 f16.v1 $(if $(filter x86_64-%, $(MACHINE)), f32.v3 f64.v3 bf16.v3 f16.v3 bf16.v4 $(AMX))
ENGINE_SOURCES = $(filter-out %_test.c %_mpi.c, $(foreach f, $(ENGINE_FOLDERS:kernels/cpu/ops=), \
                   $(wildcard $(f)/*.c)))
ENGINE_OBJECTS = $(ENGINE_SOURCES:%.c=$(BUILD)/%.o) \
                 $(foreach v, $(OP_VARIANTS), $(OPS:%.c=$(BUILD)/%.$(v).o))
ENGINE_LIBS = -lopenblas
# clang's OpenMP is a package of its own: its builds go without
OPENMP = $(if $(findstring clang, $(CC)), -Wno-source-uses-openmp -Wno-unknown-pragmas, -fopenmp)
OBJECTS = $(SOURCES:%.c=$(BUILD)/%.o) $(BUILD)/embedded_models.o

MODELS = $(wildcard convert/models/*.json)
EMBEDDED = $(MODELS) train/cli/train_rules.json
FORMATTED = $(wildcard *.c $(SOURCE_FOLDERS:=/*.[ch]) tests/*.[ch] tests/*/*.[ch] \
              kernels/cuda/*.cu kernels/cuda/*.h tests/gpu/*.cu tests/gpu/emulator/*.h tests/gpu/emulator/*.cpp \
              tests/gpu/emulator/kernels/cuda/*.h)

.PHONY: all help deps deps-build deps-test deps-clang demo docs install install-cuda-libs uninstall dist deb deb-test image image-test sbom fmt fmt-check clean cuda-libs no-cuda \
        test tests check check-tests check-all test-all asan asan-tests fuzz fuzzers fuzz-quick fuzz-long hostile faults \
        kills late valgrind bare looks deps-aarch64 aarch64 aarch64-tests aarch64-test interop interop-megatron interop-models interop-bridge interop-encodings interop-trainers \
        interop-deps findings bench bench-quick bench-optimizer bench-trainers bench-train bench-ops bench-pieces bench-encodings bench-maps gpu-tests
.SECONDARY:
.DELETE_ON_ERROR:
.DEFAULT_GOAL = all

include kernels/cuda/cuda.mk python/python.mk tests/tests.mk

# Where there is MPI, what needs it is a library that is loaded for `mpi` only, and has its own copies
# of the little it shares with the program.
MPICC ?= mpicc
MPI_LIBRARY = $(if $(shell command -v $(MPICC)), $(BUILD)/libferry_mpi.so)
MPI_SOURCES = train/comm/comm_mpi.c train/comm/call.c train/comm/reduce.c train/comm/watch.c \
              common/status.c common/memory.c

LIBRARIES = $(BUILD)/libferry_engine.so $(MPI_LIBRARY) $(if $(NO_CUDA),, $(BUILD)/libferry_cuda.so)
all: $(BUILD)/ferry $(LIBRARIES) $(if $(NO_CUDA), no-cuda) ## build the program and its libraries (the default)

help: ## list the targets
	@sed -n 's/^\([A-Za-z0-9-]*\):.*## /\1\t/p' $(filter %Makefile %.mk, $(MAKEFILE_LIST)) | expand -t 18

# ---- the program ----

# The engine uses the program's own copy of libferry: it is whole there, and its names are exported.
$(BUILD)/ferry: $(BUILD)/ferry.o $(BUILD)/libferry.a
	$(call say,linking $@)$(CC) $(FLAGS) $(HARDEN_LINK) -pie $(LDFLAGS) -rdynamic -o $@ $< \
	    -Wl,--whole-archive $(BUILD)/libferry.a -Wl,--no-whole-archive $(LIBS)

$(BUILD)/libferry.a: $(OBJECTS)
	$(call say,linking $@)rm -f $@ && $(AR) rcs $@ $^

# Model maps become part of the program: convert/map/embedded.h.
$(BUILD)/embedded_models.c: $(EMBEDDED) convert/map/embed.sh
	@mkdir -p $(@D)
	$(call say,embedding model maps)sh convert/map/embed.sh $(EMBEDDED) > $@

$(BUILD)/embedded_models.o: $(BUILD)/embedded_models.c Makefile
	$(call say,compiling $(@F:.o=.c))$(CC) $(FLAGS) -Wno-overlength-strings -c -o $@ $<

$(BUILD)/kernels/%.o: OPTIMIZE = -O3

$(BUILD)/%.o: %.c Makefile
	@mkdir -p $(@D)
	$(call compiling,$<)$(CC) $(FLAGS) -MMD -MP -c -o $@ $<

# ---- the engine ----

$(BUILD)/libferry_engine.so: $(ENGINE_OBJECTS)
	$(call say,linking $@)$(CC) $(FLAGS) $(OPENMP) $(HARDEN_LINK) $(LDFLAGS) -shared -o $@ $^ $(ENGINE_LIBS)

$(BUILD)/libferry_engine.a: $(ENGINE_OBJECTS)
	$(call say,linking $@)rm -f $@ && $(AR) rcs $@ $^

$(BUILD)/libferry_mpi.so: $(MPI_SOURCES) $(wildcard train/comm/*.h common/*.h) Makefile
	@mkdir -p $(@D)
	$(call say,compiling $@)OMPI_CC="$(CC)" MPICH_CC="$(CC)" $(MPICC) $(FLAGS) $(OPENMP) $(HARDEN_LINK) $(LDFLAGS) -fPIC \
	    -fvisibility=hidden -shared -o $@ $(MPI_SOURCES)

$(ENGINE_OBJECTS): FLAGS += -fPIC $(OPENMP)
$(BUILD)/kernels/ops.o $(BUILD)/kernels/ops_test.o: FLAGS += $(if $(AMX),-DHAVE_AMX)

# No op looks at the flags that a comparison with NaN raises, nor at errno; NaN itself is kept.
OP_FLAGS.v1 = -fno-trapping-math -fno-math-errno
OP_FLAGS.v3 = $(OP_FLAGS.v1) -march=x86-64-v3 -ffp-contract=fast
OP_FLAGS.v4 = $(OP_FLAGS.v1) -march=x86-64-v4 -mavx512bf16 -ffp-contract=fast
OP_FLAGS.amx = $(OP_FLAGS.v4) -mamx-tile -mamx-bf16
define op_rule
$(BUILD)/kernels/cpu/ops/%.$(1).$(2).o: kernels/cpu/ops/%.c Makefile
	@mkdir -p $$(@D)
	$$(call compiling,$$<)$$(CC) $$(FLAGS) $$(OP_FLAGS.$(2)) $$(OP_OPTIMIZE.$(2)) -DELEM_$(1) -DVARIANT=$(1)_$(2) -MMD -MP -c -o $$@ $$<
endef
$(foreach v, $(OP_VARIANTS), $(eval $(call op_rule,$(word 1,$(subst ., ,$(v))),$(word 2,$(subst ., ,$(v))))))

-include $(ENGINE_OBJECTS:.o=.d)
-include $(OBJECTS:.o=.d) $(BUILD)/ferry.d $(UNIT_TESTS:=.d) $(FUZZERS:=.d)

# ---- what is installed ----

# The program prints all of these: a page of itself (ferry.1) and one of each command (ferry-COMMAND.1). Each shell in
# COMPLETIONS has a line that says where it looks.
MAN_PAGES = ferry.1 $(patsubst &command_%,ferry-%.1, $(shell grep -o '&command_[a-z]*' ferry.c))
COMPLETIONS = bash zsh fish
COMPLETION.bash = share/bash-completion/completions/ferry
COMPLETION.zsh = share/zsh/site-functions/_ferry
COMPLETION.fish = share/fish/vendor_completions.d/ferry.fish

docs: $(MAN_PAGES:%=$(BUILD)/%) $(COMPLETIONS:%=$(BUILD)/completion.%) ## make manual pages and completion of shells

$(MAN_PAGES:%=$(BUILD)/%): $(BUILD)/%.1: $(BUILD)/ferry
	$< --man-page $(patsubst ferry-%,%,$(filter ferry-%, $*)) > $@

$(COMPLETIONS:%=$(BUILD)/completion.%): $(BUILD)/completion.%: $(BUILD)/ferry
	$< --$*-completion > $@

# READMEs of folders, to which documents link.
LINKED = $(filter-out $(BUILD)/%, $(wildcard */README.md */*/README.md */*/*/README.md)) tests/gpu/RESULTS.md

# Files in $(BUILD) stay unstripped. Documents keep their folders, so that links between them hold.
STRIP ?= $(patsubst %ar,%strip,$(AR))
INSTALL_STRIPPED = install -D -s --strip-program=$(STRIP)
DEST = "$(DESTDIR)$(PREFIX)"

# Beside libferry_cuda.so, which looks for NVIDIA's libraries there: what `make cuda-libs` brought, and its licences.
# INSTALL_CUDA_LIBS= leaves out these 1.5 GB.
INSTALL_CUDA_LIBS = $(if $(NO_CUDA),, install-cuda-libs)
CUDA_LICENSES = $(wildcard $(CUDA_LIBS)/*.dist-info/licenses/*)

install: all docs $(INSTALL_CUDA_LIBS) ## install program, manual pages, completion, documents and recipes below DESTDIR/PREFIX
	$(INSTALL_STRIPPED) -m 755 $(BUILD)/ferry $(DEST)/bin/ferry
	$(INSTALL_STRIPPED) -m 644 -t $(DEST)/lib/ferry $(LIBRARIES)
	install -D -m 644 -t $(DEST)/share/man/man1 $(MAN_PAGES:%=$(BUILD)/%)
	$(foreach c, $(COMPLETIONS), install -D -m 644 $(BUILD)/completion.$(c) $(DEST)/$(COMPLETION.$(c)) &&) :
	install -D -m 644 -t $(DEST)/share/doc/ferry $(wildcard *.md)
	install -D -m 644 -t $(DEST)/share/doc/ferry/docs $(wildcard docs/*.md)
	$(foreach f, $(LINKED), install -D -m 644 $(f) $(DEST)/share/doc/ferry/$(f) &&) :
	install -D -m 644 -t $(DEST)/share/doc/ferry/docs/images $(wildcard docs/images/*.png)
	install -D -m 644 -t $(DEST)/share/ferry/recipes $(wildcard recipes/*.yaml)
	ln -sfn ../../ferry/recipes $(DEST)/share/doc/ferry/recipes

install-cuda-libs:
	$(foreach d, $(CUDA_FOLDERS:cuda-libs/%=%), $(if $(wildcard $(CUDA_LIBS)/$(d)/*.so*), \
	    install -D -m 644 -t $(DEST)/lib/ferry/cuda-libs/$(d) $(CUDA_LIBS)/$(d)/*.so* &&)) :
	$(foreach f, $(CUDA_LICENSES), install -D -m 644 $(f) \
	    $(DEST)/lib/ferry/cuda-libs/$(patsubst $(CUDA_LIBS)/%,%, $(f)) &&) :

uninstall: ## remove what install installed
	rm -rf $(DEST)/lib/ferry $(DEST)/share/ferry $(DEST)/share/doc/ferry
	rm -f $(DEST)/bin/ferry $(MAN_PAGES:%=$(DEST)/share/man/man1/%) \
	    $(foreach c, $(COMPLETIONS), $(DEST)/$(COMPLETION.$(c)))

deps: ## install the Debian packages of all checks (deps-build: of the program)
	@sh tests/deps.sh $(CHECK_PACKAGES)

deps-build:
	@sh tests/deps.sh $(PACKAGES)

deps-test:
	@sh tests/deps.sh $(TEST_PACKAGES)

demo: ## install what the program needs, build it, show a conversion there and back
	@$(MAKE) deps-build
	@$(MAKE) all
	@sh tests/demo.sh $(BUILD)/ferry

# ---- the version ----

# Written only if it changes: another version compiles two small files.
$(BUILD)/VERSION: FORCE
	@mkdir -p $(@D)
	@sh common/version.sh > $@.$$$$ && if cmp -s $@.$$$$ $@; then rm $@.$$$$; else mv $@.$$$$ $@; fi
.PHONY: FORCE

VERSION_OBJECTS = $(BUILD)/common/version.o $(BUILD)/train/loop/engine_version.o
$(VERSION_OBJECTS): FLAGS += -DFERRY_VERSION='"$(shell cat $(BUILD)/VERSION)"' -DFERRY_TARGET='"$(MACHINE)"'
$(VERSION_OBJECTS): $(BUILD)/VERSION

VERSION = $(shell sh common/version.sh)

# Packages have the time of the commit, so that the same commit gives the same bytes.
SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || stat -c %Y CHANGELOG.md)

deb: all docs ## pack build/ferry_VERSION_ARCHITECTURE.deb, for this release of Debian or Ubuntu
	@sh tests/deps.sh dpkg-dev
	@rm -rf $(BUILD)/deb
	@$(MAKE) -s install DESTDIR=$(BUILD)/deb/debian/ferry PREFIX=/usr INSTALL_CUDA_LIBS= COMPLETION.zsh=share/zsh/vendor-completions/_ferry
	@SOURCE_DATE_EPOCH=$(SOURCE_DATE_EPOCH) sh packaging/deb.sh $(BUILD)/deb '$(VERSION)'

deb-test: ## install, run and remove the Debian package in a bare Debian; lintian
	@rm -f $(BUILD)/ferry_*.deb
	@$(MAKE) deb
	@sh tests/packaging/deb.sh $(BUILD)/ferry_*.deb

CONTAINERS ?= docker
image: ## build the container image "ferry" (CONTAINERS=docker, or podman)
	$(CONTAINERS) build -f packaging/Dockerfile --build-arg VERSION='$(VERSION)' -t ferry .

image-test: ## build it by docker or podman, or its stages by debootstrap, and convert in it
	@sh tests/packaging/image.sh '$(VERSION)'

sbom: all ## list what the build depends on, with licences: build/ferry.spdx.json (SPDX 2.3)
	@SOURCE_DATE_EPOCH=$(SOURCE_DATE_EPOCH) python3 packaging/sbom.py $(BUILD)/ferry '$(VERSION)' \
	    --cuda-libs '$(CUDA_LIBS)' --nvcc '$(NVCC)' > $(BUILD)/ferry.spdx.json
	@echo $(BUILD)/ferry.spdx.json

# An archive has what is committed, whatever has changed since.
COMMITTED = $(patsubst %-dirty,%,$(VERSION))
dist: ## pack what is committed into build/ferry-VERSION.tar.gz, with a file VERSION
	@mkdir -p $(BUILD)/dist
	@echo '$(COMMITTED)' > $(BUILD)/dist/VERSION
	git archive --prefix=ferry-$(COMMITTED)/ --add-file=$(BUILD)/dist/VERSION -o $(BUILD)/ferry-$(COMMITTED).tar.gz HEAD

# ---- the tree ----

fmt: ## format all C
	@clang-format -i $(FORMATTED)

fmt-check: ## check format, shell scripts, names and prose (docs/STYLE.md)
	@python3 tests/prose.py
	@clang-format --dry-run --Werror $(FORMATTED)
	@shellcheck -x -P SCRIPTDIR .ci/run tests/gpu/run $(wildcard convert/*/*.sh python/*.sh tests/*.sh tests/*/*.sh findings/*.sh)

clean: ## remove the build folder
	rm -rf $(BUILD)
