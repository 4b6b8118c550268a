"""Compile the service's C code while the package is installed, in place, for wheels and checkouts.

The compiler is the one at hand or, if there is none, the one in the `ziglang` wheel, which pip then
installs for the build. So nobody has to install a compiler to install Keymatch.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PREDICTION = Path("service/core/prediction")
LIBRARIES = {
    PREDICTION / "libvotes.so": PREDICTION / "votes.c",
    PREDICTION / "reranking/libtexts.so": PREDICTION / "reranking/texts.c",
}
COMPILERS = ("cc", "gcc", "clang")
ZIG = "ziglang>=0.14,<0.18"
# No fused multiply-add: it would round once where numpy rounds twice.
FLAGS = ("-O2", "-ffp-contract=off", "-shared", "-fPIC")


class CompiledLibraries(BuildHookInterface):
    """Builds each of `LIBRARIES` next to its source."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """What the installation needs besides `build-system.requires`."""
        return [ZIG] if self._sources_are_here() and not self._compiler_at_hand() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile; a build without the sources, as in a layer of an image, has nothing to do.

        Raises `RuntimeError` if there is no compiler and pip was told not to install `ZIG`.
        """
        if self.target_name != "wheel" or not self._sources_are_here():
            return
        # Without `baseline`, zig compiles for the processor at hand. An image or wheel would then
        # fail on an older one.
        zig = [sys.executable, "-m", "ziglang", "cc", "-mcpu=baseline"]
        command = self._compiler_at_hand() or zig
        if command is zig and importlib.util.find_spec("ziglang") is None:
            raise RuntimeError(f"no C compiler ({', '.join(COMPILERS)}): pip install '{ZIG}'")
        for name, source in LIBRARIES.items():
            library = Path(self.root) / name
            unfinished = library.with_suffix(".tmp")
            subprocess.run(
                [*command, *FLAGS, "-o", unfinished, Path(self.root) / source], check=True
            )
            unfinished.replace(library)  # a running service keeps the old file
            build_data["artifacts"].append(f"/{name}")
        # Of this platform, but of any Python: the libraries do not use its headers.
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"

    def _sources_are_here(self) -> bool:
        return all((Path(self.root) / source).exists() for source in LIBRARIES.values())

    def _compiler_at_hand(self) -> list[str]:
        return [path for name in COMPILERS if (path := shutil.which(name))][:1]
