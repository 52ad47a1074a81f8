# The commands of this repository. Each installs what is missing first (scripts/install.sh).
.PHONY: build run test bench format tidy sanitize check-megatron

build:
	@scripts/install.sh build
	@cmake --preset release
	@cmake --build --preset release

# The main job: DeepSeek-V3's shape on 8 ranks, real skew, every result checked.
run:
	@scripts/install.sh build
	@scripts/run.sh

# Everything that CI checks.
test:
	@scripts/install.sh build test style model cross bench python
	@scripts/test.sh

bench:
	@scripts/install.sh build bench python
	@scripts/bench.sh

format:
	@scripts/install.sh style
	@scripts/format.sh

tidy:
	@scripts/install.sh build style
	@scripts/test.sh format tidy clang-tidy

sanitize:
	@scripts/install.sh build test model
	@scripts/test.sh asan tsan

# Megatron-Core's flex dispatcher on ferry.deep_ep, with the released package.
check-megatron:
	@scripts/install.sh build python
	@scripts/check_megatron.sh
