# tests.mk - tests, fuzzers, benchmarks and other checks; each prints a last line of sums

# They take longest, and so begin early.
LAYOUTS = train/trainer/layouts_test.c train/trainer/layouts_experts_test.c
UNIT_TESTS = $(patsubst %.c, $(BUILD)/%, $(LAYOUTS) $(filter-out $(LAYOUTS), \
               $(foreach f, $(SOURCE_FOLDERS) tests tests/golden, $(wildcard $(f)/*_test.c))))
# Tests of emulated GPUs, of lost ranks, of runs of several ranks and of interrupted runs.
LONG_TESTS = tests/gpu/%_test.sh $(addprefix tests/, trainer/ranks_test.sh trainer/resume_test.sh cli/mpi_engine_test.sh \
               cli/deaths_test.sh)
EVERY_SHELL_TEST = $(wildcard tests/*/*_test.sh)
SHELL_TESTS = $(filter $(LONG_TESTS), $(EVERY_SHELL_TEST)) $(filter-out $(LONG_TESTS), $(EVERY_SHELL_TEST))
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

gpu-tests: all $(GPU_TESTS) $(addprefix $(BUILD)/train/loop/, forward_test generate_test) ## pack build/gpu.tar.gz for tests/gpu/run on a machine with a GPU
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

# A share of the cases of each test that has many (tests/share.sh). LONG_TESTS are for `make check`.
TEST_SHARE ?= 0/6
test: ## install what tests need, run them in three minutes on two CPUs (tests: without installing)
	@$(MAKE) deps-test
	@$(MAKE) tests

tests: all $(UNIT_TESTS) $(ENGINE_PROGRAMS) $(SLOW_READS)
	@FERRY_TEST_SHARE=$(TEST_SHARE) sh tests/run.sh $(BUILD)/ferry $(filter-out $(LONG_TESTS), $(SHELL_TESTS)) $(UNIT_TESTS)

ONLY = $(SHELL_TESTS) $(UNIT_TESTS) # those that take longest first
check: ## run all tests with all their cases, fifteen minutes; ONLY="tests/cli/x_test.sh build/common/y_test"
	@$(MAKE) deps-test
	@$(MAKE) check-tests

check-tests: all $(filter $(BUILD)/%, $(ONLY)) $(ENGINE_PROGRAMS) $(SLOW_READS) \
             $(if $(filter tests/gpu/%, $(ONLY)), $(EMULATED_CHECK) $(CUDNN_CHECK))
	@sh tests/run.sh $(BUILD)/ferry $(ONLY)

check-FOLDER: ## run a folder's unit tests and command-line tests that touch it, one minute: check-convert/hf
	@echo "make: check-FOLDER takes one of these folders: $(SOURCE_FOLDERS)"; exit 1

# A static pattern: an implicit one would not match the slash of a subfolder.
FOLDER_CHECKS = $(SOURCE_FOLDERS:%=check-%)
.PHONY: check-FOLDER $(FOLDER_CHECKS)
$(FOLDER_CHECKS): check-%: all $(ENGINE_PROGRAMS) $(SLOW_READS)
	@$(MAKE) $(patsubst %.c, $(BUILD)/%, $(wildcard $*/*_test.c))
	@FERRY_TEST_SHARE=$(TEST_SHARE) sh tests/run.sh $(BUILD)/ferry $(patsubst %.c, $(BUILD)/%, $(wildcard $*/*_test.c)) \
	    $$(python3 tests/touching.py $(BUILD) $* 60 $(filter-out $(LONG_TESTS), $(SHELL_TESTS)))

check-all: ## run every check whole, as before a release (three hours on two CPUs, by its first steps)
	@bash .ci/run --whole

test-all: all $(BUILD)/train/loop/forward_test $(patsubst %.c, $(BUILD)/%, $(LAYOUTS)) ## run the engine, forward and training, at every layout of up to eight ranks (half an hour)
	FERRY_TEST_ALL=1 $(BUILD)/train/loop/forward_test
	FERRY_TEST_ALL=1 $(BUILD)/train/trainer/layouts_test
	FERRY_TEST_ALL=1 $(BUILD)/train/trainer/layouts_experts_test

# One build for sanitizers and fuzzers. Its char is unsigned, as on aarch64. No GPU, no MPI. Ops for AVX-512, which take
# a minute to optimize, run in their own tests alone.
SANITIZED = $(BUILD)/sanitized
SANITIZED_BUILD = BUILD=$(SANITIZED) CC=clang OPTIMIZE=-O1 NVCC= MPI_LIBRARY= LDFLAGS="$(LDFLAGS) -fuse-ld=lld" \
                  OP_OPTIMIZE.v4=-O0 OP_OPTIMIZE.amx=-O0 \
                  CFLAGS="$(CFLAGS) $(SANITIZE) -fsanitize=fuzzer-no-link -funsigned-char"
# Shell tests that read files of others; unit tests do, too, or compute.
SANITIZED_TESTS = $(foreach t, source convert inspect verify digest dcp deepspeed fsdp optimizer data, tests/cli/$(t)_test.sh) \
                  tests/golden/golden_test.sh $(UNIT_TESTS)

asan: ## run unit tests and tests that read files under address and undefined-behaviour sanitizers
	@$(MAKE) deps-clang
	@$(MAKE) asan-tests $(SANITIZED_BUILD)

deps-clang:
	@sh tests/deps.sh $(TEST_PACKAGES) clang libclang-rt-dev lld

asan-tests: all $(UNIT_TESTS) $(ENGINE_PROGRAMS)
	@FERRY_CPU=v1 sh tests/run.sh $(BUILD)/ferry $(SANITIZED_TESTS)

$(BUILD)/%_fuzz: $(BUILD)/%_fuzz.o $(BUILD)/libferry.a
	$(call say,linking the fuzzers)$(CC) $(FLAGS) -fsanitize=fuzzer $(LDFLAGS) -o $@ $^ -lcmocka $(LIBS)

fuzzers: $(FUZZERS)

fuzz: ## build the fuzz targets, with clang
	@$(MAKE) fuzzers $(SANITIZED_BUILD)

fuzz-quick: fuzz ## run each fuzz target for SECONDS=20
	@sh tests/fuzz/fuzz.sh $(SANITIZED) $(or $(SECONDS), 20)

fuzz-long: fuzz ## run each fuzz target for SECONDS=600
	@sh tests/fuzz/fuzz.sh $(SANITIZED) $(or $(SECONDS), 600)

$(BUILD)/inject.so: tests/faults/inject.c
	$(call say,linking $@)$(CC) -std=c11 -D_GNU_SOURCE -I. $(WARN) -O1 -shared -fPIC -o $@ $< -ldl

hostile: ## refuse or accept bad and odd files as a table says, under sanitizers
	@$(MAKE) all $(SANITIZED_BUILD)
	@sh tests/hostile.sh $(SANITIZED)/ferry

kills: all ## kill COUNT=1000 conversions at random moments, and continue them
	@sh tests/faults/kills.sh $(BUILD)/ferry $(COUNT)

faults: all $(BUILD)/inject.so $(ENGINE_PROGRAMS) ## make each EVERY=1st system call of a conversion, or of a run's save, fail
	@sh tests/faults/faults.sh $(BUILD)/ferry $(BUILD)/inject.so $(or $(EVERY), 1)
	@FERRY_TEST_EVERY=$(or $(EVERY), 1) sh tests/trainer/save_test.sh $(BUILD)/ferry

late: all $(BUILD)/inject.so ## convert by two processes that see each other's files late
	@sh tests/faults/late.sh $(BUILD)/ferry $(BUILD)/inject.so

valgrind: all ## convert there and back under valgrind
	@sh tests/faults/valgrind.sh $(BUILD)/ferry

# ---- for another CPU ----

AARCH64 = $(BUILD)/aarch64
SYSROOT = $(AARCH64)/sysroot
EMULATOR = qemu-aarch64-static -L $(abspath $(SYSROOT))

deps-aarch64:
	@sh tests/deps.sh gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static
	@sh tests/sysroot.sh $(SYSROOT) arm64 $(filter lib% zlib%, $(TEST_PACKAGES))

aarch64: deps-aarch64 ## cross-compile program, engine and some unit tests for aarch64
	@$(MAKE) all aarch64-tests BUILD=$(AARCH64) CC="aarch64-linux-gnu-gcc --sysroot=$(abspath $(SYSROOT))" \
	    AR=aarch64-linux-gnu-ar CXX= NVCC= MPI_LIBRARY=

# These can differ on aarch64: signs of char, alignment, atomic operations, ops without instructions of x86-64. The
# emulator is 10 to 20 times as slow as a CPU, and answers wrongly when a process was started (publish_test).
AARCH64_FOLDERS = common formats kernels kernels/cpu kernels/cpu/ops ckpt
AARCH64_UNIT_TESTS = $(filter-out %/publish_test %/attention_backward_test, $(filter \
                       $(foreach f, $(AARCH64_FOLDERS) convert/convert_property, $(BUILD)/$(f)%_test), $(UNIT_TESTS)))
aarch64-tests: $(AARCH64_UNIT_TESTS)

aarch64-test: $(BUILD)/ferry $(BUILD)/libferry_engine.so aarch64 ## run them under an emulator, and compare files and results with this CPU's
	@printf '#!/bin/sh\nexec %s "$$(dirname "$$0")/ferry" "$$@"\n' '$(EMULATOR)' > $(AARCH64)/ferry.emulated
	@chmod +x $(AARCH64)/ferry.emulated
	@FERRY_NATIVE=$(abspath $(BUILD)/ferry) FERRY_EMULATOR="$(EMULATOR)" FERRY_TEST_THREADS=1 FERRY_TEST_CASES=100 \
	    sh tests/run.sh $(AARCH64)/ferry.emulated tests/aarch64.sh $(AARCH64_UNIT_TESTS:$(BUILD)/%=$(AARCH64)/%)

# ---- beside other programs ----

interop: interop-megatron interop-models interop-bridge interop-encodings interop-trainers ## exchange checkpoints with other programs

interop-megatron: all $(ENGINE_PROGRAMS) ## exchange checkpoints with transformers and Megatron-Core
	@sh tests/interop.sh $(BUILD)/ferry

interop-models: all ## take models of every family, made by two releases of transformers, to Megatron's layout and back
	@sh tests/interop/families.sh $(BUILD)/ferry

interop-bridge: all ## compare tensors and fields with those of the models that Megatron-Bridge makes
	@sh tests/interop/bridge.sh $(BUILD)/ferry

interop-encodings: all ## encode random models by the programs that do, and decode them to the same bits
	@sh tests/interop/encodings.sh $(BUILD)/ferry
	@sh tests/interop/vllm.sh $(BUILD)/ferry

interop-trainers: all ## exchange checkpoints with FSDP, torchtitan and DeepSpeed
	@sh tests/interop/trainers.sh $(BUILD)/ferry

interop-deps: ## install the virtual environments of `make interop`
	@sh tests/interop.sh --install
	@sh tests/interop/vllm.sh --install
	@sh tests/interop/bridge.sh --install
	@sh tests/interop/trainers.sh --install

findings: ## show the surprises of findings/ again (packages from PyPI)
	@sh findings/run.sh

bench: all ## time and memory beside cp and the peers (bench-quick: smaller models)
	@sh tests/bench/bench.sh $(BUILD)/ferry

bench-quick: all
	@sh tests/bench/bench.sh $(BUILD)/ferry quick

bench-optimizer: all ## conversions with optimizer states, beside cp (20 GB of disk)
	@sh tests/bench/bench.sh $(BUILD)/ferry optimizer

bench-trainers: all ## checkpoints of DeepSpeed and DCP, beside cp and DeepSpeed's programs (20 GB of disk)
	@sh tests/bench/bench.sh $(BUILD)/ferry trainers

bench-train: all ## training steps of GPT-2 124M beside PyTorch, and with LLMC=TREE llm.c (10 GB of memory)
	@sh tests/bench/bench.sh $(BUILD)/ferry train $(LLMC)

$(BUILD)/tests/bench/ops_bench: FLAGS += $(OPENMP)
$(BUILD)/tests/bench/ops_bench: $(BUILD)/tests/bench/ops_bench.o $(BUILD)/libferry_engine.a $(BUILD)/libferry.a
	$(call say,linking $@)$(CC) $(FLAGS) $(LDFLAGS) -o $@ $^ $(ENGINE_LIBS) $(LIBS)

bench-ops: $(BUILD)/tests/bench/ops_bench ## time of each op in the layers of two models, on this CPU
	@$<

$(BUILD)/tests/bench/pieces_bench: $(BUILD)/tests/bench/pieces_bench.o $(BUILD)/libferry.a
	$(call say,linking $@)$(CC) $(FLAGS) $(LDFLAGS) -o $@ $^ $(LIBS)

bench-pieces: $(BUILD)/tests/bench/pieces_bench ## time and memory of a plan of 740,000 pieces: 256 ranks, a model of 70B
	@$<

$(BUILD)/tests/bench/quant_bench: $(BUILD)/tests/bench/quant_bench.o $(BUILD)/libferry.a
	$(call say,linking $@)$(CC) $(FLAGS) $(LDFLAGS) -o $@ $^ $(LIBS)

bench-encodings: all $(BUILD)/tests/bench/quant_bench ## codes a second, encoded models beside cp, plans of large ones; five minutes, 12 GB of disk
	@sh tests/bench/encodings.sh $(BUILD)/ferry $(BUILD)/tests/bench/quant_bench

bench-maps: all ## length of model maps, time to load and prove them, and to plan a DeepSeek V3 of full size
	@sh tests/bench/maps.sh $(BUILD)/ferry

looks: all ## take screenshots of reports into build/looks, and fail if anything is cut off; IMAGES=docs/images renews those
	@sh tests/deps.sh chromium pngquant python3
	@sh tests/looks.sh $(BUILD)/ferry $(BUILD)/looks $(IMAGES)

bare: ## run README's commands in a bare Debian (SUITE=bookworm COMPONENTS=main)
	@sh tests/bare.sh $(SUITE) $(COMPONENTS)
