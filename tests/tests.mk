# tests.mk - tests, fuzzers, benchmarks and other checks; each prints a last line of sums

# They take longest, and so begin early.
LAYOUTS = train/trainer/layouts_test.c train/trainer/layouts_experts_test.c
UNIT_TESTS = $(patsubst %.c, $(BUILD)/%, $(LAYOUTS) $(filter-out $(LAYOUTS), \
               $(foreach f, $(FOLDERS) $(ENGINE_FOLDERS) tests tests/golden, $(wildcard $(f)/*_test.c))))
SHELL_TESTS = $(wildcard tests/gpu/*_test.sh) $(filter-out tests/gpu/%, $(wildcard tests/*/*_test.sh))
FUZZERS = $(patsubst %.c, $(BUILD)/%, $(wildcard tests/fuzz/*_fuzz.c))

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

$(BUILD)/tests/gpu/driver/libcuda.so.1: tests/gpu/emulator/driver.cpp Makefile tests/tests.mk
	@mkdir -p $(@D)
	$(call say,linking $@)$(CXX) -std=c++17 -Wall -Wextra -shared -fPIC -Wl,-soname,$(@F) -o $@ $<

-include $(BUILD)/tests/gpu/cudnn_plans.cu.d

# Programs of the engine that tests run.
ENGINE_PROGRAMS = $(BUILD)/tests/trainer/resave
$(ENGINE_PROGRAMS): %: %.o $(BUILD)/libferry_engine.a $(BUILD)/libferry.a
	$(call say,linking the tests)$(CC) $(FLAGS) $(LDFLAGS) -rdynamic -o $@ $< $(BUILD)/libferry_engine.a \
	    $(BUILD)/libferry.a $(LIBS) $(OPENMP) $(ENGINE_LIBS) -ldl

-include $(ENGINE_PROGRAMS:=.d)

# Beside the libraries, as the program is: they are what is carried to a machine with a GPU.
GPU_TESTS = $(addprefix $(BUILD)/tests/gpu/, ops_check gpu_ops_bench collectives_check)
GPU_TEST_PARTS = $(addprefix $(BUILD)/tests/gpu/, trial.o makers.o makers_training.o large_check.o)
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

tests-built: all $(UNIT_TESTS) $(ENGINE_PROGRAMS)

tests: tests-built $(EMULATED_CHECK) $(CUDNN_CHECK) $(SLOW_READS)
	@sh tests/run.sh $(BUILD)/ferry $(SHELL_TESTS) $(UNIT_TESTS) # those that take longest first

test-all: all $(BUILD)/train/loop/forward_test $(patsubst %.c, $(BUILD)/%, $(LAYOUTS)) ## the engine, forward and training, at every layout that fits eight ranks (half an hour)
	FERRY_TEST_ALL=1 $(BUILD)/train/loop/forward_test
	FERRY_TEST_ALL=1 $(BUILD)/train/trainer/layouts_test
	FERRY_TEST_ALL=1 $(BUILD)/train/trainer/layouts_experts_test

# Nothing of it needs a GPU's code.
asan: ## the same under address and undefined-behaviour sanitizers
	@$(MAKE) test BUILD=$(BUILD)/asan OPTIMIZE=-O1 CFLAGS="$(CFLAGS) $(SANITIZE)" NVCC=

$(BUILD)/%_fuzz: $(BUILD)/%_fuzz.o $(BUILD)/libferry.a
	$(call say,linking the fuzzers)$(CC) $(FLAGS) -fsanitize=fuzzer $(LDFLAGS) -o $@ $^ -lcmocka $(LIBS)

fuzzers: $(FUZZERS)

fuzz: ## builds the fuzz targets, with clang
	@$(MAKE) fuzzers BUILD=$(BUILD)/fuzz CC=clang OPTIMIZE=-O1 \
	    CFLAGS="$(CFLAGS) $(SANITIZE) -fsanitize=fuzzer-no-link"

fuzz-quick: fuzz ## runs each of them for 20 seconds
	@sh tests/fuzz/fuzz.sh $(BUILD)/fuzz $(or $(SECONDS), 20)

fuzz-long: fuzz ## runs each of them for SECONDS=600
	@sh tests/fuzz/fuzz.sh $(BUILD)/fuzz $(or $(SECONDS), 600)

$(BUILD)/inject.so: tests/faults/inject.c
	$(call say,linking $@)$(CC) -std=c11 -D_GNU_SOURCE -I. $(WARN) -O1 -shared -fPIC -o $@ $< -ldl

hostile: all ## bad and odd files: each is refused, or accepted, as a table says
	@sh tests/hostile.sh $(BUILD)/ferry

kills: all ## kills COUNT=1000 conversions at random moments, and goes on with them
	@sh tests/faults/kills.sh $(BUILD)/ferry $(or $(COUNT), 1000)

faults: all $(BUILD)/inject.so $(ENGINE_PROGRAMS) ## makes each EVERY=1st system call of a conversion, or of a run's save, fail
	@sh tests/faults/faults.sh $(BUILD)/ferry $(BUILD)/inject.so $(or $(EVERY), 1)
	@FERRY_TEST_EVERY=$(or $(EVERY), 1) sh tests/trainer/save_test.sh $(BUILD)/ferry

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

# What takes under a minute under an emulator that is 10 to 20 times as slow as a CPU; so not the gradients of whole
# models, and not all layouts. publish_test needs to know when a process was started, which the emulator answers wrongly.
NOT_EMULATED = %/publish_test %/layouts_test %/layouts_experts_test %/backward_test %/recompute_test %/attention_backward_test
AARCH64_TESTS = tests/aarch64.sh $(foreach t, convert verify digest inspect, tests/cli/$(t)_test.sh) \
                $(patsubst $(BUILD)/%, $(AARCH64)/%, $(filter-out $(NOT_EMULATED), $(UNIT_TESTS)))

aarch64-test: $(BUILD)/ferry $(BUILD)/libferry_engine.so aarch64 ## runs that under an emulator, and compares what it writes and computes with this CPU's
	@printf '#!/bin/sh\nexec %s "$$(dirname "$$0")/ferry" "$$@"\n' '$(EMULATOR)' > $(AARCH64)/ferry.emulated
	@chmod +x $(AARCH64)/ferry.emulated
	@FERRY_NATIVE=$(abspath $(BUILD)/ferry) FERRY_EMULATOR="$(EMULATOR)" FERRY_TEST_CASES=10 FERRY_TEST_FEWEST=1 OMP_NUM_THREADS=1 \
	    sh tests/run.sh $(AARCH64)/ferry.emulated $(AARCH64_TESTS)

# ---- beside other programs ----

interop: interop-megatron interop-trainers ## other programs read what we write, and we read what they write

interop-megatron: all $(ENGINE_PROGRAMS) ## the part of transformers and Megatron-Core
	@sh tests/interop.sh $(BUILD)/ferry

interop-trainers: all ## the part of FSDP, torchtitan and DeepSpeed
	@sh tests/interop/trainers.sh $(BUILD)/ferry

interop-deps: ## the virtual environments of `make interop`
	@sh tests/interop.sh --install
	@sh tests/interop/trainers.sh --install

bench: all ## wall time and memory beside cp and the peers (bench-quick: smaller models)
	@sh tests/bench/bench.sh $(BUILD)/ferry

bench-quick: all
	@sh tests/bench/bench.sh $(BUILD)/ferry quick

bench-optimizer: all ## conversions with the state of an optimizer, beside cp (20 GB of disk)
	@sh tests/bench/bench.sh $(BUILD)/ferry optimizer

bench-trainers: all ## checkpoints of DeepSpeed and DCP, beside cp and DeepSpeed's own programs (20 GB of disk)
	@sh tests/bench/bench.sh $(BUILD)/ferry trainers

bench-train: all ## steps of training GPT-2 124M on this CPU, beside PyTorch (LLMC=TREE: and llm.c), and what saves cost (10 GB of memory, 4 GB of disk)
	@sh tests/bench/bench.sh $(BUILD)/ferry train $(LLMC)

$(BUILD)/tests/bench/ops_bench: FLAGS += $(OPENMP)
$(BUILD)/tests/bench/ops_bench: $(BUILD)/tests/bench/ops_bench.o $(BUILD)/libferry_engine.a $(BUILD)/libferry.a
	$(call say,linking $@)$(CC) $(FLAGS) $(LDFLAGS) -o $@ $^ $(ENGINE_LIBS) $(LIBS)

bench-ops: $(BUILD)/tests/bench/ops_bench ## what the layers of two models spend in each op, on this CPU
	@$<

$(BUILD)/tests/bench/pieces_bench: $(BUILD)/tests/bench/pieces_bench.o $(BUILD)/libferry.a
	$(call say,linking $@)$(CC) $(FLAGS) $(LDFLAGS) -o $@ $^ $(LIBS)

bench-pieces: $(BUILD)/tests/bench/pieces_bench ## time and memory of a plan of 740,000 pieces, as 256 ranks cut a model of 70B
	@$<

bare: ## `make demo` and `make test` in a bare Debian, made by debootstrap (SUITE=bookworm COMPONENTS=main)
	@sh tests/bare.sh $(SUITE) $(COMPONENTS)
