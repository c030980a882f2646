# cuda.mk - builds libferry_cuda.so, and the same kernels for an emulated GPU

# libferry_cuda.so, which the engine loads to compute on a GPU. CUDA_ARCHS: its machine code; newer GPUs
# compile the PTX of CUDA_PTX. CUDA_LIBS: where `make cuda-libs` puts NVIDIA's libraries.
NVCC = $(shell command -v nvcc)
CXX = g++
CUDA_ARCHS ?= 80 90a
CUDA_PTX ?= 90
CUDA_OPTIMIZE ?= -O3
CUDA_LIBS ?= build/cuda-libs
# The versions of PyTorch 2.11; cuDNN compiles its attention kernels by nvrtc.
CUDA_PACKAGES = nvidia-cublas==13.1.0.3 nvidia-nccl-cu13==2.28.9 nvidia-cudnn-cu13==9.19.0.56 \
                nvidia-cuda-nvrtc==13.0.88
CUDA_HOME = $(patsubst %/bin/nvcc,%,$(realpath $(NVCC)))
CUBLAS = $(firstword $(foreach d, $(CUDA_LIBS)/nvidia/cu13 $(CUDA_HOME) /usr/local/cuda, \
           $(if $(wildcard $(d)/include/cublasLt.h), $(d))))
NO_CUDA = $(if $(NVCC),$(if $(CUBLAS),,cublasLt.h is not here; make cuda-libs),nvcc is not here)
CUDNN = $(CUDA_LIBS)/nvidia/cudnn
CUDA_SOURCES = $(wildcard kernels/cuda/*.cu)
# -lineinfo: sanitizers and profilers name lines
CUDA_FLAGS = -std=c++17 $(CUDA_OPTIMIZE) -lineinfo -I. -I$(CUBLAS)/include -I$(CUDNN)/include -I$(CUDA_LIBS)/nvidia/nccl/include -Xcompiler=-Wall,-Wextra,-fPIC,-fvisibility=hidden,-fstack-protector-strong \
             $(CUDA_CODE)
CUDA_CODE = $(foreach a, $(CUDA_ARCHS), -gencode arch=compute_$(a),code=sm_$(a)) \
            $(foreach a, $(CUDA_PTX), -gencode arch=compute_$(a),code=compute_$(a))
# Kernels for Hopper GPUs alone; the rest does without them.
$(BUILD)/%_sm90.cu.o: CUDA_CODE = -gencode arch=compute_90a,code=sm_90a
# Where libferry_cuda.so finds them at run time.
CUDA_FOLDERS = $(foreach d, cu13 nccl cudnn, cuda-libs/nvidia/$(d)/lib)
CUDA_PATHS = $(subst $(empty) ,:,$(strip $(CUDA_FOLDERS:%=$$ORIGIN/%) $(CUDA_FOLDERS:%=$$ORIGIN/../../%) /usr/local/cuda/lib64))
EMULATED = $(CUDA_SOURCES:%.cu=$(BUILD)/emulated/%.o) \
           $(patsubst %, $(BUILD)/emulated/tests/gpu/emulator/%.o, emulator sm90)
EMULATED_CUDA = $(BUILD)/emulated/libferry_cuda.so
EMULATED_NCCL = $(BUILD)/emulated/libnccl.so.2

no-cuda:
	@echo '  without libferry_cuda.so: $(NO_CUDA)'

# It takes the functions of libferry from the program, as libferry_engine.so does.
$(BUILD)/libferry_cuda.so: $(CUDA_SOURCES:%.cu=$(BUILD)/%.cu.o)
	$(call say,linking $@)$(NVCC) -shared -Xlinker -s $(HARDEN_LINK:-Wl,%=-Xlinker %) -o $@ $^ -L$(CUBLAS)/lib -L$(CUBLAS)/lib64 \
	    -Xlinker -rpath -Xlinker '$(CUDA_PATHS)' -l:libcublasLt.so.13

$(BUILD)/%.cu.o: %.cu Makefile kernels/cuda/cuda.mk
	@mkdir -p $(@D)
	$(call say,compiling $(call folder,$<) with nvcc)$(NVCC) $(CUDA_FLAGS) -MMD -MP -MF $(@:.o=.d) -c -o $@ $<

cuda-libs: ## install NVIDIA's libraries from PyPI below build/cuda-libs
	python3 -m venv $(BUILD)/pip
	$(BUILD)/pip/bin/pip install --quiet --disable-pip-version-check --no-deps --upgrade \
	    --target $(CUDA_LIBS) $(CUDA_PACKAGES)

# The same kernels for the host: tests/gpu/emulator. FERRY_CUDA_LIBRARY names the library to load.
EMULATED_FLAGS = -std=c++17 -O2 -g -fPIC -Wall -Wextra -Wno-unknown-pragmas -Itests/gpu/emulator -I. -MMD -MP
$(BUILD)/emulated/%.o: %.cu Makefile kernels/cuda/cuda.mk
	@mkdir -p $(@D)
	$(call say,compiling the emulated GPU)$(CXX) -x c++ $(EMULATED_FLAGS) -c -o $@ $<

$(BUILD)/emulated/%.o: %.cpp Makefile kernels/cuda/cuda.mk
	@mkdir -p $(@D)
	$(call say,compiling the emulated GPU)$(CXX) $(EMULATED_FLAGS) -c -o $@ $<

$(EMULATED_CUDA): $(EMULATED)
	$(call say,linking $@)$(CXX) -g -shared -Wl,-soname,$(@F) -Wl,-rpath,'$$ORIGIN' -o $@ $^ -ldl

$(EMULATED_NCCL): $(BUILD)/emulated/tests/gpu/emulator/nccl.o $(EMULATED_CUDA)
	$(call say,linking $@)$(CXX) -g -shared -Wl,-rpath,'$$ORIGIN' -o $@ $< -L$(@D) -l:libferry_cuda.so

-include $(CUDA_SOURCES:%.cu=$(BUILD)/%.cu.d) $(EMULATED:.o=.d)
