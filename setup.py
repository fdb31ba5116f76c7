"""Build of the compiled parts: one shared core, and the extension modules that link it.

FEDBUFF_BUILD = auto     compile; where that fails install the Python parts and record why (the default)
                require  compile, or fail
                pure     do not compile
FEDBUFF_WERROR = 1                     warnings are errors, for development
FEDBUFF_SANITIZE = address,undefined   build with these sanitizers, for development
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
MODE = os.environ.get("FEDBUFF_BUILD", "auto")
if MODE not in ("auto", "require", "pure"):
    raise SystemExit(f"FEDBUFF_BUILD={MODE!r}: expected auto, require or pure")
SANITIZE = os.environ.get("FEDBUFF_SANITIZE", "")

MACOS = sys.platform == "darwin"
CORE_NAME = "libfedbuff.dylib" if MACOS else "libfedbuff.so"
ORIGIN = "@loader_path" if MACOS else "$ORIGIN"

INCLUDE = ["csrc/include", "csrc/core"]  # relative, so that a copy of the tree looks at its own headers
FLAGS = [
    "-std=c++17",
    "-O1" if SANITIZE else "-O3",
    "-fPIC",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-wrapv",  # which Python asks for: an index that may wrap around is an address to be worked out anew
    "-fvisibility=hidden",
    "-pthread",
]
FLAGS += ["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow"]
CYTHON_FLAGS = ["-O1" if SANITIZE else "-O3", "-ffp-contract=off", "-fvisibility=hidden"]
LINK_FLAGS = ["-pthread"]
if os.environ.get("FEDBUFF_WERROR"):
    FLAGS.append("-Werror")
if SANITIZE:
    sanitizer = [f"-fsanitize={SANITIZE}", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-g1"]
    FLAGS += sanitizer
    CYTHON_FLAGS += sanitizer
    LINK_FLAGS += sanitizer


def extensions() -> list[Extension]:
    import numpy
    import pybind11
    from Cython.Build import cythonize

    # Conversions inside pybind11's and Cython's own headers are theirs to warn about, not ours.
    relaxed = [flag for flag in FLAGS if flag not in ("-Wconversion", "-Wshadow", "-Wpedantic")]
    core = Extension(
        "fedbuff._core",
        sorted(str(p.relative_to(ROOT)) for p in (ROOT / "csrc" / "bindings").glob("*.cpp")),
        include_dirs=[*INCLUDE, pybind11.get_include()],
        extra_compile_args=relaxed,
        extra_link_args=LINK_FLAGS,
        language="c++",
    )
    cython = [
        Extension(
            f"fedbuff.{p.stem}",
            [str(p.relative_to(ROOT))],
            include_dirs=[*INCLUDE, numpy.get_include()],
            define_macros=[("NPY_NO_DEPRECATED_API", "NPY_1_7_API_VERSION")],
            extra_compile_args=CYTHON_FLAGS,
            extra_link_args=LINK_FLAGS,
        )
        for p in sorted((ROOT / "src").glob("*.pyx"))
    ]
    directives = {"language_level": 3, "boundscheck": False, "wraparound": False, "embedsignature": True}
    return [core, *cythonize(cython, include_path=["."], compiler_directives=directives)]


class BuildCore(build_ext):
    """Compiles csrc/core into one shared library beside the modules that link it by $ORIGIN."""

    reason = ""

    def run(self) -> None:
        try:
            super().run()
        except Exception as error:  # distutils raises several unrelated classes; every one means "no compiler"
            if MODE != "auto":
                raise
            self.reason = f"{type(error).__name__}: {error}".strip().splitlines()[0]
            print(f"fedbuff: nothing was compiled ({self.reason}); installing the Python parts only")
            for built in Path(self.build_lib, "fedbuff").glob("*.so"):
                built.unlink()
            self.extensions = []
        self.write_build_info()

    def finalize_options(self) -> None:
        """Objects stay in build/, by compiler and flags: an editable install, a wheel and a second run share them."""
        super().finalize_options()
        flags = [flag for flag in [*FLAGS, *CYTHON_FLAGS] if not flag.startswith("-W")]
        how = [sys.version, sys.platform, flags, [os.environ.get(name) for name in ("CC", "CXX", "CFLAGS")]]
        self.build_temp = str(ROOT / "build" / f"objects-{hashlib.sha256(repr(how).encode()).hexdigest()[:12]}")

    def build_extensions(self) -> None:
        output = Path(self.build_lib) / "fedbuff"
        output.mkdir(parents=True, exist_ok=True)
        core_sources = sorted(str(p.relative_to(ROOT)) for p in (ROOT / "csrc" / "core").rglob("*.cpp"))
        core = Extension("core", core_sources, include_dirs=INCLUDE, extra_compile_args=[*FLAGS, "-DFB_BUILDING_CORE"])
        objects = self.compile_objects([core, *self.extensions])
        extra = [*LINK_FLAGS, f"-Wl,-install_name,@rpath/{CORE_NAME}" if MACOS else f"-Wl,-soname,{CORE_NAME}"]
        self.compiler.link_shared_object(
            objects[0], str(output / CORE_NAME), extra_postargs=extra, target_lang="c++", build_temp=self.build_temp
        )
        self.force = True  # all that is left is to link, which takes no time
        for extension, compiled in zip(self.extensions, objects[1:], strict=True):
            extension.language = extension.language or "c"
            extension.sources = []
            extension.extra_objects = compiled
            extension.library_dirs.append(str(output))
            extension.libraries.append("fedbuff")
            extension.extra_link_args = [*extension.extra_link_args, f"-Wl,-rpath,{ORIGIN}"]
        super().build_extensions()

    def copy_extensions_to_source(self) -> None:
        super().copy_extensions_to_source()
        self.copy_file(str(Path(self.build_lib) / "fedbuff" / CORE_NAME), str(ROOT / "fedbuff" / CORE_NAME))

    def compile_objects(self, parts: list[Extension]) -> list[list[str]]:
        """Objects of each part, made anew where older than a file that went into them; a thread for each."""

        def compile_one(part: Extension, source: str) -> str:
            done = Path(self.build_temp) / Path(source).with_suffix(".o")
            if is_stale(done):
                self.compiler.compile(
                    [source],
                    output_dir=self.build_temp,
                    macros=part.define_macros,
                    include_dirs=part.include_dirs,
                    extra_postargs=[*part.extra_compile_args, "-MMD", "-MF", str(done.with_suffix(".d"))],
                )
            return str(done)

        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            jobs = [[pool.submit(compile_one, part, source) for source in part.sources] for part in parts]
            return [[job.result() for job in of_part] for of_part in jobs]

    def get_outputs(self) -> list[str]:
        built = Path(self.build_lib) / "fedbuff" / CORE_NAME
        return [*super().get_outputs(), *([str(built)] if built.exists() else [])]

    def get_output_mapping(self) -> dict[str, str]:
        mapping: dict[str, str] = super().get_output_mapping()
        built = Path(self.build_lib) / "fedbuff" / CORE_NAME
        if self.inplace and built.exists():
            mapping[str(built)] = str(ROOT / "fedbuff" / CORE_NAME)
        return mapping

    def write_build_info(self) -> None:
        compiler = ""
        if self.extensions:
            command = [*self.compiler.compiler_so_cxx[:1], "--version"]
            compiler = subprocess.run(command, capture_output=True, text=True).stdout.splitlines()[0]
        write_build_info(Path(self.build_lib) / "fedbuff", bool(self.extensions), self.reason, compiler)
        if self.inplace or self.editable_mode:
            write_build_info(ROOT / "fedbuff", bool(self.extensions), self.reason, compiler)


def is_stale(compiled: Path) -> bool:
    """Whether an object is missing or older than one of the files that the compiler listed beside it."""
    listed = compiled.with_suffix(".d")
    if not compiled.exists() or not listed.exists():
        return True
    files = [Path(name) for name in listed.read_text().replace("\\\n", " ").split()[1:]]
    return any(not file.exists() or file.stat().st_mtime > compiled.stat().st_mtime for file in files)


class BuildPure(build_py):
    """Records that nothing was compiled because nobody asked for it."""

    def run(self) -> None:
        super().run()
        if MODE == "pure":
            target = ROOT / "fedbuff" if self.editable_mode else Path(self.build_lib) / "fedbuff"
            write_build_info(target, False, "FEDBUFF_BUILD=pure", "")


def write_build_info(folder: Path, compiled: bool, reason: str, compiler: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "_build_info.py").write_text(
        '"""Written by the build: what was compiled, with what; or why nothing was."""\n\n'
        f"COMPILED = {compiled!r}\nREASON = {reason!r}\nCOMPILER = {compiler!r}\n"
        f"FLAGS = {' '.join(FLAGS) if compiled else ''!r}\nMACHINE = {platform.machine()!r}\n"
    )


setup(
    ext_modules=[] if MODE == "pure" else extensions(),
    cmdclass={"build_ext": BuildCore, "build_py": BuildPure},
)
