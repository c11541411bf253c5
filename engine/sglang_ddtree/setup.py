"""Only what pyproject.toml can't say: the build leaves nothing behind in the source folder."""

import atexit
import shutil
import tempfile

from setuptools import setup
from setuptools.command.build import build
from setuptools.command.build_py import build_py
from setuptools.command.egg_info import egg_info

SCRATCH = tempfile.mkdtemp(prefix="sglang-ddtree-wheel-")
atexit.register(shutil.rmtree, SCRATCH, ignore_errors=True)


class Build(build):
    """Builds outside the source folder."""

    def initialize_options(self) -> None:
        super().initialize_options()
        self.build_base = SCRATCH


class WithoutThisFile(build_py):
    """setup.py lies in the package folder and is no part of the package."""

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        return [found for found in super().find_package_modules(package, package_dir) if found[1] != "setup"]


class EggInfoElsewhere(egg_info):
    """Keeps the metadata folder out of the source tree."""

    def initialize_options(self) -> None:
        super().initialize_options()
        self.egg_base = SCRATCH


setup(cmdclass={"build": Build, "build_py": WithoutThisFile, "egg_info": EggInfoElsewhere})
