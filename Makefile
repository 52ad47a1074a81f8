# The commands of this repository. Each installs what is missing first (scripts/install.sh).
# ccache takes no path of this tree into account, so one build folder, or clone, has what another has compiled.
export CCACHE_BASEDIR ?= $(CURDIR)
.PHONY: build run test check matrix long wheel deb docs bench gallery release format tidy sanitize check-megatron check-vllm

build:
	@scripts/install.sh build
	@cmake --preset release
	@cmake --build --preset release

# The main job: DeepSeek-V3's shape on 8 ranks, real skew, every result checked.
run:
	@scripts/install.sh build
	@scripts/run.sh

# Every module, once, in minutes.
test:
	@scripts/test.sh $(KNOWN) install=build,test,style,model,bench venv format tidy release+python

# The whole matrix: `make test`, what CI runs beyond it, the long forms; and one line for all. What passed on this commit
# in an earlier run is not run again, by whichever command it ran.
check:
	@$(MAKE) --no-print-directory -k KNOWN=--known test matrix long

# What CI has beyond `make test`: sanitizers, emulation, clang-tidy, fuzzing, types, the site, Python's long tests,
# the example of transformers, JAX.
matrix:
	@scripts/test.sh --go-on $(KNOWN) install=build,test,style,lint,cross,python,types,docs,browser,fuzz begin-clang-tidy asan+python-long tsan aarch64 fuzz types docs transformers-example jax clang-tidy

# What takes longer than CI may, or needs more: full length, transformers, a newer torch (5.5 GB), the first steps on a
# bare system. BARE= leaves out those with wheels and packages, as `make release` takes them with its own.
BARE = bare
long:
	@scripts/test.sh --go-on $(KNOWN) install=build,test,model,bench,python,wheel,bare,deb long transformers torch journey source $(BARE)

# A wheel and an sdist for other machines, in build/wheels: make wheel PYTHONS="python3.11 python3.12".
wheel:
	@scripts/install.sh build python wheel
	@scripts/wheel.sh $(PYTHONS)

# libferry0.2, libferry-cann0.2, libferry-plan0.2, libferry-dev and ferry-tools, in build/deb.
deb:
	@scripts/install.sh build deb
	@scripts/deb.sh

# A version, in build/release-VERSION: all of `make check`, then wheels, sdist, Debian packages, site, lists of parts,
# notices and checksums, tried from there. CHECK= leaves `make check` out, for tests of this command.
CHECK = check
release:
	@scripts/install.sh build test python wheel deb docs cross bare release
	@scripts/release.sh ready
	@$(if $(CHECK),$(MAKE) --no-print-directory BARE= $(CHECK),echo "make check is left out")
	@scripts/release.sh files "$(CHECK)" $(PYTHONS)

# The site in build/site: pages, reference, search; needs no server and no network. Every link is checked.
docs:
	@scripts/test.sh install=build,test,python,docs wheel docs
	@echo "build/site/index.html"

bench:
	@scripts/install.sh build bench python
	@scripts/bench.sh suite

# Every picture of docs/, with the tables: on an idle machine, or it refuses.
gallery:
	@scripts/install.sh build bench python
	@scripts/bench.sh gallery

format:
	@scripts/install.sh style
	@scripts/format.sh

tidy:
	@scripts/test.sh install=build,style,lint format tidy clang-tidy

sanitize:
	@scripts/test.sh install=build,test asan tsan

# Megatron-Core's flex dispatcher on ferry.deep_ep, with the released package.
check-megatron:
	@scripts/install.sh build python
	@scripts/check_with.sh megatron

# vLLM on CPU with ferry, real requests: 3.4 GB of wheels in a virtual environment of its own.
check-vllm:
	@scripts/install.sh build python
	@scripts/check_with.sh vllm
