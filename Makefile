# make            the program at build/ferry, and the library it is made of
# make help       every target, with a line on each
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
CHECK_PACKAGES = $(TEST_PACKAGES) g++ libopenmpi-dev openmpi-bin clang libclang-rt-dev clang-format shellcheck \
                 valgrind strace python3-venv ca-certificates

FOLDERS = common formats kernels/cpu ckpt convert convert/map convert/hf convert/megatron convert/cli \
          validate validate/compare validate/hints validate/forward validate/report train/cli
# of libferry_engine.so, which the program loads when it computes
ENGINE_FOLDERS = kernels kernels/cpu/ops train/comm train/engine train/model train/loop
WARN = -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wvla -Wundef -Wstrict-prototypes \
       -Wmissing-prototypes -Wwrite-strings
# CFLAGS and LDFLAGS are the user's
FLAGS = -std=c11 -D_GNU_SOURCE -I. -g $(OPTIMIZE) -pthread $(WARN) $(CFLAGS)
LIBS = -lcjson -lyaml -ldeflate -lcrypto -lz -lm
# $(call say,PHASE) in front of a command hides it, and prints the phase where it is the first of it.
# $(call compiling,FILE) does it for a file of a folder.
empty =
said = said.$(subst $(empty) ,-,$(1))
say = $(if $(V),,@$(if $($(said)),,$(eval $(said) := yes)$(info $(1))))
folder = $(patsubst %/,%,$(patsubst ./,$(1),$(dir $(1))))
compiling = $(call say,compiling $(if $(filter %_test.c, $(1)),the tests of )$(call folder,$(1)))
SANITIZE = -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer

SOURCES = $(filter-out %_test.c, $(foreach f, $(FOLDERS), $(wildcard $(f)/*.c)))
# Ops are compiled for each type of element and for what CPUs have: any (v1); of x86-64 ones AVX2 and FMA;
# AVX-512 with instructions for bf16; AMX beside these.
OPS = $(filter-out %_test.c, $(wildcard kernels/cpu/ops/*.c))
OP_VARIANTS = f32.v1 f64.v1 bf16.v1 $(if $(filter x86_64-%, $(MACHINE)), f32.v3 f64.v3 bf16.v3 bf16.v4 bf16.amx)
ENGINE_SOURCES = $(filter-out %_test.c %_mpi.c, $(foreach f, $(ENGINE_FOLDERS:kernels/cpu/ops=), \
                   $(wildcard $(f)/*.c)))
ENGINE_OBJECTS = $(ENGINE_SOURCES:%.c=$(BUILD)/%.o) \
                 $(foreach v, $(OP_VARIANTS), $(OPS:%.c=$(BUILD)/%.$(v).o))
ENGINE_LIBS = -lopenblas
# clang's OpenMP is a package of its own: its builds go without
OPENMP = $(if $(findstring clang, $(CC)), -Wno-source-uses-openmp -Wno-unknown-pragmas, -fopenmp)
OBJECTS = $(SOURCES:%.c=$(BUILD)/%.o) $(BUILD)/embedded_models.o

# Of libferry_cuda.so, which the engine loads where it computes on a GPU. CUDA_ARCHS: what machine
# code it has; newer GPUs compile its PTX. CUDA_LIBS is where `make cuda-libs` puts NVIDIA's.
NVCC = $(shell command -v nvcc)
CXX = g++
CUDA_ARCHS ?= 80 90a
CUDA_LIBS ?= build/cuda-libs
# The versions that PyTorch 2.11 comes with; cuDNN compiles its kernels of attention by nvrtc.
CUDA_PACKAGES = nvidia-cublas==13.1.0.3 nvidia-nccl-cu13==2.28.9 nvidia-cudnn-cu13==9.19.0.56 \
                nvidia-cuda-nvrtc==13.0.88
CUDA_HOME = $(patsubst %/bin/nvcc,%,$(realpath $(NVCC)))
CUBLAS = $(firstword $(foreach d, $(CUDA_LIBS)/nvidia/cu13 $(CUDA_HOME) /usr/local/cuda, \
           $(if $(wildcard $(d)/include/cublasLt.h), $(d))))
NO_CUDA = $(if $(NVCC),$(if $(CUBLAS),,cublasLt.h is not here; make cuda-libs),nvcc is not here)
CUDNN = $(CUDA_LIBS)/nvidia/cudnn
CUDA_SOURCES = $(wildcard kernels/cuda/*.cu)
# -lineinfo: sanitizers and profilers name lines
CUDA_FLAGS = -std=c++17 -O3 -lineinfo -I. -I$(CUBLAS)/include -I$(CUDNN)/include -I$(CUDA_LIBS)/nvidia/nccl/include -Xcompiler=-Wall,-Wextra,-fPIC,-fvisibility=hidden \
             $(CUDA_CODE)
CUDA_CODE = $(foreach a, $(CUDA_ARCHS), -gencode arch=compute_$(a),code=sm_$(a)) \
            -gencode arch=compute_90,code=compute_90
# What only Hopper GPUs can run; the rest does without, and so does the emulator.
$(BUILD)/%_sm90.cu.o: CUDA_CODE = -gencode arch=compute_90a,code=sm_90a
# Where it finds them when it runs.
CUDA_FOLDERS = $(foreach d, cu13 nccl cudnn, cuda-libs/nvidia/$(d)/lib)
CUDA_PATHS = $(subst $(empty) ,:,$(strip $(CUDA_FOLDERS:%=$$ORIGIN/%) $(CUDA_FOLDERS:%=$$ORIGIN/../../%) /usr/local/cuda/lib64))
EMULATED = $(patsubst %.cu, $(BUILD)/emulated/%.o, $(filter-out %_sm90.cu, $(CUDA_SOURCES))) \
           $(patsubst %, $(BUILD)/emulated/tests/gpu/emulator/%.o, emulator sm90)
EMULATED_CUDA = $(BUILD)/emulated/libferry_cuda.so
EMULATED_NCCL = $(BUILD)/emulated/libnccl.so.2
MODELS = $(wildcard convert/models/*.json)
UNIT_TESTS = $(patsubst %.c, $(BUILD)/%, \
               $(foreach f, $(FOLDERS) $(ENGINE_FOLDERS) tests tests/golden, $(wildcard $(f)/*_test.c)))
SHELL_TESTS = $(wildcard tests/gpu/*_test.sh) $(filter-out tests/gpu/%, $(wildcard tests/*/*_test.sh))
FUZZERS = $(patsubst %.c, $(BUILD)/%, $(wildcard tests/fuzz/*_fuzz.c))
FORMATTED = $(wildcard *.c $(FOLDERS:=/*.[ch]) $(ENGINE_FOLDERS:=/*.[ch]) tests/*.[ch] tests/*/*.[ch] \
              kernels/cuda/*.cu kernels/cuda/*.h tests/gpu/*.cu tests/gpu/emulator/*.h tests/gpu/emulator/*.cpp \
              tests/gpu/emulator/kernels/cuda/*.h)

.PHONY: all help deps deps-build deps-test test tests tests-built test-all asan fuzz fuzzers fuzz-quick \
        fuzz-long hostile faults kills late valgrind bare deps-aarch64 aarch64 aarch64-test interop \
        bench bench-quick bench-ops demo docs install uninstall fmt fmt-check clean cuda-libs no-cuda gpu-tests
.SECONDARY:

# Where there is MPI, what needs it is a library that is loaded for `mpi` only, and has its own copies
# of the little it shares with the program.
MPICC ?= mpicc
MPI_LIBRARY = $(if $(shell command -v $(MPICC)), $(BUILD)/libferry_mpi.so)
MPI_SOURCES = train/comm/comm_mpi.c train/comm/call.c train/comm/reduce.c train/comm/watch.c \
              common/status.c common/memory.c

all: $(BUILD)/ferry $(BUILD)/libferry_engine.so $(MPI_LIBRARY) $(if $(NO_CUDA), no-cuda, $(BUILD)/libferry_cuda.so) ## the program and its libraries (the default)

help: ## this list
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' Makefile | expand -t 13

# ---- the program ----

# The engine uses the program's own copy of libferry: it is whole there, and its names are exported.
$(BUILD)/ferry: $(BUILD)/ferry.o $(BUILD)/libferry.a
	$(call say,linking $@)$(CC) $(FLAGS) $(LDFLAGS) -rdynamic -o $@ $< \
	    -Wl,--whole-archive $(BUILD)/libferry.a -Wl,--no-whole-archive $(LIBS) -ldl

$(BUILD)/libferry.a: $(OBJECTS)
	$(call say,linking $@)rm -f $@ && $(AR) rcs $@ $^

# Model maps become part of the program: convert/map/embedded.h.
$(BUILD)/embedded_models.c: $(MODELS) convert/map/embed.sh
	@mkdir -p $(@D)
	$(call say,embedding model maps)sh convert/map/embed.sh $(MODELS) > $@

$(BUILD)/embedded_models.o: $(BUILD)/embedded_models.c
	$(call say,compiling $(@F:.o=.c))$(CC) $(FLAGS) -Wno-overlength-strings -c -o $@ $<

$(BUILD)/kernels/%.o: OPTIMIZE = -O3

$(BUILD)/%.o: %.c Makefile
	@mkdir -p $(@D)
	$(call compiling,$<)$(CC) $(FLAGS) -MMD -MP -c -o $@ $<

# ---- the engine ----

$(BUILD)/libferry_engine.so: $(ENGINE_OBJECTS)
	$(call say,linking $@)$(CC) $(FLAGS) $(OPENMP) $(LDFLAGS) -shared -o $@ $^ $(ENGINE_LIBS)

$(BUILD)/libferry_engine.a: $(ENGINE_OBJECTS)
	$(call say,linking $@)rm -f $@ && $(AR) rcs $@ $^

$(BUILD)/libferry_mpi.so: $(MPI_SOURCES) $(wildcard train/comm/*.h common/*.h) Makefile
	@mkdir -p $(@D)
	$(call say,compiling $@)OMPI_CC="$(CC)" MPICH_CC="$(CC)" $(MPICC) $(FLAGS) $(OPENMP) $(LDFLAGS) -fPIC -fvisibility=hidden \
	    -shared -o $@ $(MPI_SOURCES)

$(ENGINE_OBJECTS): FLAGS += -fPIC $(OPENMP)

# No op looks at the flags that a comparison with NaN raises; NaN itself is kept.
OP_FLAGS.v1 = -fno-trapping-math
OP_FLAGS.v3 = -fno-trapping-math -march=x86-64-v3 -ffp-contract=fast
OP_FLAGS.v4 = -fno-trapping-math -march=x86-64-v4 -mavx512bf16 -ffp-contract=fast
OP_FLAGS.amx = $(OP_FLAGS.v4) -mamx-tile -mamx-bf16
define op_rule
$(BUILD)/kernels/cpu/ops/%.$(1).$(2).o: kernels/cpu/ops/%.c Makefile
	@mkdir -p $$(@D)
	$$(call compiling,$$<)$$(CC) $$(FLAGS) $$(OP_FLAGS.$(2)) -DELEM_$(1) -DVARIANT=$(1)_$(2) -MMD -MP -c -o $$@ $$<
endef
$(foreach v, $(OP_VARIANTS), $(eval $(call op_rule,$(word 1,$(subst ., ,$(v))),$(word 2,$(subst ., ,$(v))))))

-include $(ENGINE_OBJECTS:.o=.d)
-include $(OBJECTS:.o=.d) $(BUILD)/ferry.d $(UNIT_TESTS:=.d) $(FUZZERS:=.d)

# ---- the GPU's ----

no-cuda:
	@echo '  without libferry_cuda.so: $(NO_CUDA)'

# It takes what it needs of libferry from the program, as libferry_engine.so does.
$(BUILD)/libferry_cuda.so: $(CUDA_SOURCES:%.cu=$(BUILD)/%.cu.o)
	$(call say,linking $@)$(NVCC) -shared -Xlinker -s -o $@ $^ -L$(CUBLAS)/lib -L$(CUBLAS)/lib64 \
	    -Xlinker -rpath -Xlinker '$(CUDA_PATHS)' -l:libcublasLt.so.13

$(BUILD)/%.cu.o: %.cu Makefile
	@mkdir -p $(@D)
	$(call say,compiling $(call folder,$<) with nvcc)$(NVCC) $(CUDA_FLAGS) -MMD -MP -MF $(@:.o=.d) -c -o $@ $<

cuda-libs: ## NVIDIA's libraries from PyPI, below build/cuda-libs
	python3 -m venv $(BUILD)/pip
	$(BUILD)/pip/bin/pip install --quiet --disable-pip-version-check --no-deps --upgrade \
	    --target $(CUDA_LIBS) $(CUDA_PACKAGES)

# The same kernels for the host: tests/gpu/emulator. FERRY_CUDA_LIBRARY names the library to take.
EMULATED_FLAGS = -std=c++17 -O2 -g -fPIC -Wall -Wextra -Wno-unknown-pragmas -Itests/gpu/emulator -I. -MMD -MP
$(BUILD)/emulated/%.o: %.cu Makefile
	@mkdir -p $(@D)
	$(call say,compiling the emulated GPU)$(CXX) -x c++ $(EMULATED_FLAGS) -c -o $@ $<

$(BUILD)/emulated/%.o: %.cpp Makefile
	@mkdir -p $(@D)
	$(call say,compiling the emulated GPU)$(CXX) $(EMULATED_FLAGS) -c -o $@ $<

$(EMULATED_CUDA): $(EMULATED)
	$(call say,linking $@)$(CXX) -g -shared -Wl,-soname,$(@F) -Wl,-rpath,'$$ORIGIN' -o $@ $^ -ldl

$(EMULATED_NCCL): $(BUILD)/emulated/tests/gpu/emulator/nccl.o $(EMULATED_CUDA)
	$(call say,linking $@)$(CXX) -g -shared -Wl,-rpath,'$$ORIGIN' -o $@ $< -L$(@D) -l:libferry_cuda.so

-include $(CUDA_SOURCES:%.cu=$(BUILD)/%.cu.d) $(EMULATED:.o=.d)

docs: $(BUILD)/ferry.1 $(BUILD)/ferry.bash $(BUILD)/_ferry ## its man page, bash and zsh completion

$(BUILD)/ferry.1: $(BUILD)/ferry
	$< --man-page > $@

$(BUILD)/ferry.bash: $(BUILD)/ferry
	$< --bash-completion > $@

$(BUILD)/_ferry: $(BUILD)/ferry
	$< --zsh-completion > $@

install: all docs ## program, man page and completion below DESTDIR/PREFIX
	install -D -m 755 $(BUILD)/ferry $(DESTDIR)$(PREFIX)/bin/ferry
	mkdir -p $(DESTDIR)$(PREFIX)/lib/ferry
	install -m 755 $(BUILD)/libferry_engine.so $(MPI_LIBRARY) $(if $(NO_CUDA),,$(BUILD)/libferry_cuda.so) \
	    $(DESTDIR)$(PREFIX)/lib/ferry
	install -D -m 644 $(BUILD)/ferry.1 $(DESTDIR)$(PREFIX)/share/man/man1/ferry.1
	install -D -m 644 $(BUILD)/ferry.bash \
	    $(DESTDIR)$(PREFIX)/share/bash-completion/completions/ferry
	install -D -m 644 $(BUILD)/_ferry $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_ferry

uninstall: ## takes them away again
	rm -rf $(DESTDIR)$(PREFIX)/lib/ferry
	rm -f $(DESTDIR)$(PREFIX)/bin/ferry $(DESTDIR)$(PREFIX)/share/man/man1/ferry.1 \
	    $(DESTDIR)$(PREFIX)/share/bash-completion/completions/ferry \
	    $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_ferry

deps: ## Debian's packages for the program and everything below (deps-build: the program alone)
	@sh tests/deps.sh $(CHECK_PACKAGES)

deps-build:
	@sh tests/deps.sh $(PACKAGES)

deps-test:
	@sh tests/deps.sh $(TEST_PACKAGES)

# ---- tests: each prints a last line of sums ----

ENGINE_TESTS = $(foreach f, $(ENGINE_FOLDERS), $(patsubst %.c, $(BUILD)/%, $(wildcard $(f)/*_test.c)))
$(ENGINE_TESTS): ENGINE = $(BUILD)/libferry_engine.a
# libferry_cuda.so, where a test is told to use it, takes what it needs of libferry from the program.
$(ENGINE_TESTS): ENGINE_LINK = $(OPENMP) $(ENGINE_LIBS) -ldl -rdynamic
$(ENGINE_TESTS): $(BUILD)/libferry_engine.a
$(ENGINE_TESTS:=.o): FLAGS += $(OPENMP)

$(BUILD)/%_test: $(BUILD)/%_test.o $(BUILD)/libferry.a
	$(call say,linking the tests)$(CC) $(FLAGS) $(LDFLAGS) -o $@ $< $(ENGINE) $(BUILD)/libferry.a -lcmocka $(LIBS) $(ENGINE_LINK)

# cuDNN's plans for a GPU that is not there, with a driver that does nothing.
$(BUILD)/tests/gpu/cudnn_plans: $(BUILD)/tests/gpu/cudnn_plans.cu.o $(BUILD)/kernels/cuda/cudnn_plan.cu.o \
                                $(BUILD)/libferry.a $(BUILD)/tests/gpu/driver/libcuda.so.1
	$(call say,linking $@)$(NVCC) -o $@ $(filter-out %.so.1, $^) $(LIBS) -L$(CUBLAS)/lib -L$(CUBLAS)/lib64 \
	    -Xlinker -rpath -Xlinker '$(abspath $(CUBLAS)/lib):$(abspath $(CUDNN)/lib)' \
	    -Xlinker --no-as-needed -l:libcublasLt.so.13

$(BUILD)/tests/gpu/driver/libcuda.so.1: tests/gpu/emulator/driver.cpp Makefile
	@mkdir -p $(@D)
	$(call say,linking $@)$(CXX) -std=c++17 -Wall -Wextra -shared -fPIC -Wl,-soname,$(@F) -o $@ $<

-include $(BUILD)/tests/gpu/cudnn_plans.cu.d

# Beside the libraries, as the program is: they are what is carried to a machine with a GPU.
GPU_TESTS = $(addprefix $(BUILD)/tests/gpu/, ops_check ops_bench collectives_check)
GPU_TEST_PARTS = $(addprefix $(BUILD)/tests/gpu/, trial.o large_check.o)
$(GPU_TESTS): %: %.o $(GPU_TEST_PARTS) $(BUILD)/libferry.a $(BUILD)/libferry_engine.so
	$(call say,linking $@)$(CC) $(FLAGS) $(LDFLAGS) -rdynamic -o $@ $< $(GPU_TEST_PARTS) \
	    -Wl,--whole-archive $(BUILD)/libferry.a -Wl,--no-whole-archive -L$(BUILD) -l:libferry_engine.so \
	    -Wl,-rpath,'$$ORIGIN/../..' $(LIBS) -ldl

gpu-tests: all $(GPU_TESTS) $(addprefix $(BUILD)/train/loop/, forward_test generate_test) ## build/gpu.tar.gz: what tests/gpu/run needs on a machine with a GPU
	@sh tests/gpu/pack.sh $(BUILD)

-include $(GPU_TESTS:=.d) $(GPU_TEST_PARTS:.o=.d)

# Sanitizers take too long with its fibers; not all who test have a C++ compiler.
EMULATED_CHECK = $(if $(findstring -fsanitize, $(CFLAGS)),, \
                   $(if $(shell command -v $(CXX)), $(EMULATED_CUDA) $(EMULATED_NCCL) $(BUILD)/tests/gpu/ops_check \
                   $(BUILD)/tests/gpu/collectives_check))

CUDNN_CHECK = $(if $(NO_CUDA)$(findstring -fsanitize, $(CFLAGS)),, \
                $(if $(wildcard $(CUDNN)/include/cudnn_graph.h), $(BUILD)/tests/gpu/cudnn_plans))

# It must be in front of libc, where sanitizers want to be.
SLOW_READS = $(if $(findstring -fsanitize, $(CFLAGS)),, $(BUILD)/inject.so)

test: ## installs what unit tests and those of the command line need, and runs them (tests: runs them)
	@$(MAKE) deps-test
	@$(MAKE) tests

tests-built: all $(UNIT_TESTS)

tests: tests-built $(EMULATED_CHECK) $(CUDNN_CHECK) $(SLOW_READS)
	@sh tests/run.sh $(BUILD)/ferry $(SHELL_TESTS) $(UNIT_TESTS) # those that take longest first

test-all: all $(BUILD)/train/loop/forward_test ## the engine at every layout that fits eight ranks (minutes)
	FERRY_TEST_ALL=1 $(BUILD)/train/loop/forward_test

asan: ## the same under address and undefined-behaviour sanitizers
	@$(MAKE) test BUILD=$(BUILD)/asan OPTIMIZE=-O1 CFLAGS="$(CFLAGS) $(SANITIZE)"

$(BUILD)/%_fuzz: $(BUILD)/%_fuzz.o $(BUILD)/libferry.a
	$(call say,linking the fuzzers)$(CC) $(FLAGS) -fsanitize=fuzzer $(LDFLAGS) -o $@ $^ -lcmocka $(LIBS)

fuzzers: $(FUZZERS)

fuzz: ## builds the fuzz targets, with clang
	@$(MAKE) fuzzers BUILD=$(BUILD)/fuzz CC=clang OPTIMIZE=-O1 \
	    CFLAGS="$(CFLAGS) $(SANITIZE) -fsanitize=fuzzer-no-link"

fuzz-quick: fuzz ## runs each of them for 20 seconds
	@sh tests/fuzz/run.sh $(BUILD)/fuzz $(or $(SECONDS), 20)

fuzz-long: fuzz ## runs each of them for SECONDS=600
	@sh tests/fuzz/run.sh $(BUILD)/fuzz $(or $(SECONDS), 600)

$(BUILD)/inject.so: tests/faults/inject.c
	$(call say,linking $@)$(CC) -std=c11 -D_GNU_SOURCE $(WARN) -O1 -shared -fPIC -o $@ $< -ldl

hostile: all ## bad and odd files: each is refused, or accepted, as a table says
	@sh tests/hostile.sh $(BUILD)/ferry

kills: all ## kills COUNT=1000 conversions at random moments, and goes on with them
	@sh tests/faults/kills.sh $(BUILD)/ferry $(or $(COUNT), 1000)

faults: all $(BUILD)/inject.so ## makes each EVERY=1st system call of a conversion fail
	@sh tests/faults/faults.sh $(BUILD)/ferry $(BUILD)/inject.so $(or $(EVERY), 1)

late: all $(BUILD)/inject.so ## two processes that see each other's files late
	@sh tests/faults/late.sh $(BUILD)/ferry $(BUILD)/inject.so

valgrind: all ## one conversion there and back under valgrind
	@sh tests/faults/valgrind.sh $(BUILD)/ferry

# ---- for another CPU ----

AARCH64 = $(BUILD)/aarch64
SYSROOT = $(AARCH64)/sysroot
EMULATOR = qemu-aarch64-static -L $(abspath $(SYSROOT))

deps-aarch64:
	@sh tests/deps.sh gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static
	@sh tests/sysroot.sh $(SYSROOT) arm64 $(filter lib% zlib%, $(TEST_PACKAGES))

aarch64: deps-aarch64 ## program, engine and unit tests for aarch64, by a cross compiler
	@$(MAKE) tests-built BUILD=$(AARCH64) CC="aarch64-linux-gnu-gcc --sysroot=$(abspath $(SYSROOT))" \
	    AR=aarch64-linux-gnu-ar CXX= NVCC= MPI_LIBRARY=

# What takes under a minute under an emulator that is 10 to 20 times as slow as a CPU. publish_test needs to know when
# a process was started, which the emulator answers wrongly.
AARCH64_TESTS = tests/aarch64.sh $(foreach t, convert verify digest inspect, tests/cli/$(t)_test.sh) \
                $(patsubst $(BUILD)/%, $(AARCH64)/%, $(filter-out %/publish_test, $(UNIT_TESTS)))

aarch64-test: $(BUILD)/ferry $(BUILD)/libferry_engine.so aarch64 ## runs that under an emulator, and compares what it writes and computes with this CPU's
	@printf '#!/bin/sh\nexec %s "$$(dirname "$$0")/ferry" "$$@"\n' '$(EMULATOR)' > $(AARCH64)/ferry.emulated
	@chmod +x $(AARCH64)/ferry.emulated
	@FERRY_NATIVE=$(abspath $(BUILD)/ferry) FERRY_EMULATOR="$(EMULATOR)" FERRY_TEST_CASES=10 OMP_NUM_THREADS=1 \
	    sh tests/run.sh $(AARCH64)/ferry.emulated $(AARCH64_TESTS)

# ---- beside other programs ----

interop: all ## transformers and Megatron-Core read what we write, and we read what they write
	@sh tests/interop.sh $(BUILD)/ferry

bench: all ## wall time and memory beside cp and the peers (bench-quick: smaller models)
	@sh tests/bench/bench.sh $(BUILD)/ferry

bench-quick: all
	@sh tests/bench/bench.sh $(BUILD)/ferry quick

$(BUILD)/tests/bench/ops_bench: FLAGS += $(OPENMP)
$(BUILD)/tests/bench/ops_bench: $(BUILD)/tests/bench/ops_bench.o $(BUILD)/libferry_engine.a $(BUILD)/libferry.a
	$(call say,linking $@)$(CC) $(FLAGS) $(LDFLAGS) -o $@ $^ $(ENGINE_LIBS) $(LIBS)

bench-ops: $(BUILD)/tests/bench/ops_bench ## what the layers of two models spend in each op, on this CPU
	@$<

demo: ## installs what the program needs, builds it and shows a conversion there and back
	@$(MAKE) deps-build
	@$(MAKE) all
	@sh tests/demo.sh $(BUILD)/ferry

bare: ## `make demo` and `make test` in a bare Debian, made by debootstrap (SUITE=bookworm COMPONENTS=main)
	@sh tests/bare.sh $(SUITE) $(COMPONENTS)

# ---- the tree ----

fmt: ## clang-format over all C
	clang-format -i $(FORMATTED)

fmt-check: ## what that would change, and what shellcheck says of the scripts
	@clang-format --dry-run --Werror $(FORMATTED)
	@shellcheck -x -P SCRIPTDIR .ci/run tests/gpu/run $(wildcard convert/*/*.sh tests/*.sh tests/*/*.sh)

clean: ## removes the build folder
	rm -rf $(BUILD)
