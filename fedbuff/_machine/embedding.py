"""Where a compiler finds the header and the library that the package brings along."""

from __future__ import annotations

import sys
from pathlib import Path

from .._version import __version__

__all__ = ["cflags", "get_cmake_dir", "get_include", "libs"]

_PACKAGE = Path(__file__).resolve().parents[1]


def get_include() -> str:
    """The folder to give to a C or C++ compiler with -I, so that <fedbuff/fedbuff.h> and fedbuff.hpp are found.

    >>> import fedbuff as fb, pathlib
    >>> pathlib.Path(fb.get_include(), "fedbuff", "fedbuff.h").is_file()
    True
    """
    installed = _PACKAGE / "include"
    return str(installed if installed.is_dir() else _PACKAGE.parent / "csrc" / "include")


def get_cmake_dir() -> str:
    """The folder to give to CMake as fedbuff_DIR, so that find_package(fedbuff) works.

    >>> import fedbuff as fb, pathlib
    >>> pathlib.Path(fb.get_cmake_dir(), "fedbuff-config.cmake").is_file()
    True
    """
    return str(_PACKAGE / "cmake")


def library() -> str:
    """The path of the shared library. ImportError where nothing was compiled."""
    path = _PACKAGE / ("libfedbuff.dylib" if sys.platform == "darwin" else f"libfedbuff-{__version__}.so")
    if not path.is_file():
        raise ImportError(f"{path.name} is not there: nothing was compiled; fedbuff.show_config() says why")
    return str(path)


def cflags() -> str:
    """What a compiler needs to find the headers."""
    return f"-I{get_include()}"


def libs() -> str:
    """What a linker needs to link the library, and to find it again when the program runs."""
    folder = Path(library()).parent
    return f"-L{folder} -lfedbuff -Wl,-rpath,{folder}"
