"""Conan's recipe: `conan create . -s compiler.cppstd=20` builds libferry and libferry_cann from this tree, then
programs against them. What the libraries need themselves is the system's, as for the Debian packages
(scripts/install.sh)."""

import re
from pathlib import Path

from conan import ConanFile
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeToolchain, cmake_layout
from conan.tools.system.package_manager import Apt


class Ferry(ConanFile):
    name = "ferry"
    license = "Apache-2.0"
    description = "Dispatch and combine of Mixture-of-Experts tokens"
    package_type = "shared-library"
    settings = "os", "arch", "compiler", "build_type"
    exports_sources = "CMakeLists.txt", "LICENSE", "cmake/*", "include/*", "src/*"
    test_package_folder = "tests/install/consumer"

    def set_version(self):
        text = (Path(self.recipe_folder) / "CMakeLists.txt").read_text()
        self.version = re.search(r"project\(ferry VERSION (\S+)", text)[1]

    def validate(self):
        check_min_cppstd(self, 20)

    def system_requirements(self):
        Apt(self).install(["pkg-config", "libfmt-dev", "libhwy-dev", "libssl-dev", "libucx-dev", "libhwloc-dev",
                           "nlohmann-json3-dev"])

    def layout(self):
        cmake_layout(self)

    def generate(self):
        toolchain = CMakeToolchain(self)
        toolchain.cache_variables.update(FERRY_BUILD_TOOLS=False, FERRY_BUILD_TESTS=False)
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        CMake(self).install()

    def package_info(self):
        # The targets that find_package gives elsewhere: ferry::ferry and ferry::cann. Conan adds one for the whole
        # package; by default it is ferry::ferry, which would then link libferry_cann too.
        self.cpp_info.set_property("cmake_target_name", "ferry::all")
        engine, cann = self.cpp_info.components["engine"], self.cpp_info.components["cann"]
        engine.libs, cann.libs = ["ferry"], ["ferry_cann"]
        cann.requires = ["engine"]
        for part, target, package in ((engine, "ferry::ferry", "ferry"), (cann, "ferry::cann", "ferry-cann")):
            part.set_property("cmake_target_name", target)
            part.set_property("pkg_config_name", package)
