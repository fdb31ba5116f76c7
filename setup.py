"""Build of the compiled parts: one shared core, and the extension modules that link it.

FEDBUFF_BUILD = auto     compile, or fail; where there is no compiler install the Python parts alone (the default)
                require  compile, or fail
                pure     do not compile
FEDBUFF_DEBUG = 1                      keep debugging symbols
FEDBUFF_WERROR = 1                     warnings are errors, for development
FEDBUFF_SANITIZE = address,undefined   build with these sanitizers, for development
FEDBUFF_BUILD_LOG = PATH               say there what is being compiled, as pip shows nothing of it
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.errors import CompileError

ROOT = Path(__file__).parent
MODE = os.environ.get("FEDBUFF_BUILD", "auto")
if MODE not in ("auto", "require", "pure"):
    raise SystemExit(f"FEDBUFF_BUILD={MODE!r}: expected auto, require or pure")
SANITIZE = os.environ.get("FEDBUFF_SANITIZE", "")
if sys.platform == "win32":
    raise SystemExit("fedbuff runs on Linux and macOS; on Windows, install it inside WSL")
if sys.maxsize < 2**32:
    raise SystemExit("fedbuff needs a 64-bit Python")

VERSION = re.search(r'__version__ = "(.+)"', (ROOT / "fedbuff" / "_version.py").read_text())[1]  # type: ignore[index]
MACOS = sys.platform == "darwin"
if MACOS:
    os.environ.setdefault("MACOSX_DEPLOYMENT_TARGET", str(sysconfig.get_config_var("MACOSX_DEPLOYMENT_TARGET")))
# On Linux the version is part of the name: another libfedbuff in the process is not taken for this one. libfedbuff.so
# is a text that leads linkers to it. macOS tells libraries apart by their paths.
CORE_NAME = "libfedbuff.dylib" if MACOS else f"libfedbuff-{VERSION}.so"
CORE_FILES = [CORE_NAME] if MACOS else [CORE_NAME, "libfedbuff.so"]
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
if not os.environ.get("FEDBUFF_DEBUG"):
    FLAGS.append("-g0")  # Python's own flags ask for symbols, which would be nine tenths of the wheel
FLAGS += ["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow"]
CYTHON_FLAGS = [
    flag for flag in FLAGS if flag[:2] == "-O" or flag in ("-ffp-contract=off", "-fvisibility=hidden", "-g0")
]
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
    directives["freethreading_compatible"] = True
    return [core, *cythonize(cython, include_path=["."], compiler_directives=directives)]


class BuildCore(build_ext):
    """Compiles csrc/core into one shared library beside the modules that link it by $ORIGIN."""

    reason = ""

    def run(self) -> None:
        try:
            super().run()
        except NoCompiler as error:
            if MODE != "auto":
                raise
            self.reason = str(error)
            print(f"fedbuff: nothing was compiled ({self.reason}); installing the Python parts only", file=sys.stderr)
            self.extensions = []
        self.write_build_info()

    def finalize_options(self) -> None:
        """Objects stay in build/, by compiler and flags: an editable install, a wheel and a second run share them."""
        super().finalize_options()
        flags = [flag for flag in [*FLAGS, *CYTHON_FLAGS] if not flag.startswith("-W")]
        how = [sys.version, sys.platform, flags, [os.environ.get(name) for name in ("CC", "CXX", "CFLAGS")]]
        self.build_temp = str(ROOT / "build" / f"objects-{hashlib.sha256(repr(how).encode()).hexdigest()[:12]}")

    def build_extensions(self) -> None:
        compiler = self.compiler.compiler_so_cxx[0]
        if shutil.which(compiler) is None:
            raise NoCompiler(f"there is no C++ compiler: {compiler} was not found")
        self.compiler.spawn = self.compiler.call = run_compiler  # setuptools calls the one or the other
        output = Path(self.build_lib) / "fedbuff"
        output.mkdir(parents=True, exist_ok=True)
        core_sources = sorted(str(p.relative_to(ROOT)) for p in (ROOT / "csrc" / "core").rglob("*.cpp"))
        core = Extension("core", core_sources, include_dirs=INCLUDE, extra_compile_args=[*FLAGS, "-DFB_BUILDING_CORE"])
        objects = self.compile_objects([core, *self.extensions])
        self.link_core(objects[0], output / CORE_NAME)
        self.force = True  # all that is left is to link, which takes no time
        for extension, compiled in zip(self.extensions, objects[1:], strict=True):
            extension.language = extension.language or "c"
            extension.sources = []
            extension.extra_objects = compiled
            extension.library_dirs.append(str(output))
            extension.libraries.append("fedbuff")
            extension.extra_link_args = [*extension.extra_link_args, f"-Wl,-rpath,{ORIGIN}"]
        super().build_extensions()

    def link_core(self, objects: list[str], library: Path) -> None:
        linker = list(self.compiler.linker_so_cxx)
        if MACOS:
            extra = [f"-Wl,-install_name,@rpath/{CORE_NAME}"]
            # Python links bundles, which nothing can be linked with.
            self.compiler.linker_so_cxx = ["-dynamiclib" if flag == "-bundle" else flag for flag in linker]
        else:
            script = Path(self.build_temp) / "symbols.map"
            script.write_text(
                "FEDBUFF_1 { global: fb_*; local: *; };\n"
                f'FEDBUFF_PRIVATE_{VERSION} {{ global: extern "C++" {{ *fedbuff::*; }}; }};\n'
            )
            extra = [f"-Wl,-soname,{CORE_NAME}", f"-Wl,--version-script={script}"]
            library.with_name("libfedbuff.so").write_text(f"INPUT({CORE_NAME})\n")
        self.compiler.link_shared_object(
            objects, str(library), extra_postargs=[*LINK_FLAGS, *extra], target_lang="c++", build_temp=self.build_temp
        )
        self.compiler.linker_so_cxx = linker

    def copy_extensions_to_source(self) -> None:
        super().copy_extensions_to_source()
        for name in CORE_FILES:
            self.copy_file(str(Path(self.build_lib) / "fedbuff" / name), str(ROOT / "fedbuff" / name))

    def compile_objects(self, parts: list[Extension]) -> list[list[str]]:
        """Objects of each part, made anew where older than a file that went into them; a thread for each."""

        objects = {
            source: Path(self.build_temp) / Path(source).with_suffix(".o") for p in parts for source in p.sources
        }
        stale = {source for source, done in objects.items() if is_stale(done)}
        threads, made = os.cpu_count() or 1, itertools.count(1)
        say(f"{len(stale)} of {len(objects)} files to compile, {threads} at a time")

        def compile_one(part: Extension, source: str) -> str:
            done = objects[source]
            if source in stale:
                self.compiler.compile(
                    [source],
                    output_dir=self.build_temp,
                    macros=part.define_macros,
                    include_dirs=part.include_dirs,
                    extra_postargs=[*part.extra_compile_args, "-MMD", "-MF", str(done.with_suffix(".d"))],
                )
                say(f"{next(made)}/{len(stale)} {source}")
            return str(done)

        with ThreadPoolExecutor(threads) as pool:
            jobs = [[pool.submit(compile_one, part, source) for source in part.sources] for part in parts]
            try:
                return [[job.result() for job in of_part] for of_part in jobs]
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def core_files(self) -> list[Path]:
        built = [Path(self.build_lib) / "fedbuff" / name for name in CORE_FILES]
        return [path for path in built if path.exists()]

    def get_outputs(self) -> list[str]:
        return [*super().get_outputs(), *map(str, self.core_files())]

    def get_output_mapping(self) -> dict[str, str]:
        mapping: dict[str, str] = super().get_output_mapping()
        if self.inplace:
            mapping |= {str(path): str(ROOT / "fedbuff" / path.name) for path in self.core_files()}
        return mapping

    def write_build_info(self) -> None:
        compiler = ""
        if self.extensions:
            command = [*self.compiler.compiler_so_cxx[:1], "--version"]
            compiler = subprocess.run(command, capture_output=True, text=True).stdout.splitlines()[0]
        write_build_info(Path(self.build_lib) / "fedbuff", bool(self.extensions), self.reason, compiler)
        if self.inplace or self.editable_mode:
            write_build_info(ROOT / "fedbuff", bool(self.extensions), self.reason, compiler)


def say(text: str) -> None:
    """A line of progress, where somebody wants it."""
    path = os.environ.get("FEDBUFF_BUILD_LOG")
    if path:
        with contextlib.suppress(OSError), open(path, "a", encoding="utf-8") as log:
            print(f"fedbuff: {text}", file=log)


class NoCompiler(CompileError):
    """There is nothing to compile with."""


def run_compiler(command: list[str], **_: object) -> None:
    """Runs a compiler or linker. Where it fails, the error begins with the first error of its own."""
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, errors="replace")
    sys.stderr.write(done.stderr)
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if re.search(r"\berror\b|undefined|cannot find", line)]
        said = lines[0].strip() if lines else f"{command[0]} ended with {done.returncode}"
        raise CompileError(f"{said}\nfedbuff was not compiled; FEDBUFF_BUILD=pure installs it without compiled parts")


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
