# python.mk - the wheel: the Python module with the program, which needs nothing but libc

# STATIC=yes links libraries statically. Debian has no libcjson.a, and a libgomp.a for programs alone: these two
# lie beside the program, which looks there.
ifdef STATIC
LIBS = -s -Wl,--as-needed,-rpath,'$$ORIGIN' -lcjson -l:libyaml.a -l:libdeflate.a -l:libcrypto.a -l:libz.a -lm -ldl
ENGINE_LIBS = -s -Wl,--as-needed,-rpath,'$$ORIGIN',--exclude-libs,ALL -l:libopenblas.a -l:libcrypto.a -lm -ldl
endif

WHEEL = $(BUILD)/wheel
WHEEL_FILES = $(addprefix $(WHEEL)/, ferry libferry_engine.so) \
              $(foreach f, libcjson.so.1 libgomp.so.1, $(shell $(CC) -print-file-name=$(f)))
# Debian's packages with licences of what the wheel holds of others.
WHEEL_LICENCES = $(filter lib% zlib%, $(filter-out libc6-dev, $(PACKAGES))) libgomp1

.PHONY: wheel wheel-oldest wheel-test
wheel: ## build a wheel for this machine's glibc or newer
	@$(MAKE) $(WHEEL)/ferry $(WHEEL)/libferry_engine.so BUILD=$(WHEEL) STATIC=yes
	@SOURCE_DATE_EPOCH=$(SOURCE_DATE_EPOCH) python3 python/make_wheel.py $(VERSION) $(BUILD) $(WHEEL_FILES) \
	    --licences $(WHEEL_LICENCES)

wheel-oldest: ## build the wheel in SUITE=bullseye, for any Linux with its glibc or newer
	@sh python/oldest.sh $(BUILD) $(VERSION) $(or $(SUITE), bullseye)

wheel-test: ## install the newest wheel of build/ in minimal SUITES="bullseye bookworm trixie", try it there
	@sh tests/wheel.sh $(BUILD) $(SUITES)
