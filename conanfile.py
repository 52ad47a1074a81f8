"""Conan's recipe: `conan create . -s compiler.cppstd=20` builds libferry, libferry_cann and libferry_plan from this
tree, then programs against them. What the libraries need themselves is the system's, as for the Debian packages
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
        # The targets that find_package gives elsewhere. Conan adds one for the whole package; by default it is
        # ferry::ferry, which would then link all three libraries.
        self.cpp_info.set_property("cmake_target_name", "ferry::all")
        for part, library in (("engine", "ferry"), ("cann", "ferry_cann"), ("plan", "ferry_plan")):
            component = self.cpp_info.components[part]
            component.libs = [library]
            component.requires = [] if part == "engine" else ["engine"]
            component.set_property("cmake_target_name", f"ferry::{library.removeprefix('ferry_')}")
            component.set_property("pkg_config_name", library.replace("_", "-"))
