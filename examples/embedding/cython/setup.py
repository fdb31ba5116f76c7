"""python setup.py build_ext --inplace"""

from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

import fedbuff as fb

package = str(Path(fb.__file__).parent)
loop = Extension(
    "loop",
    ["loop.pyx"],
    include_dirs=[fb.get_include()],
    libraries=["fedbuff"],
    library_dirs=[package],
    runtime_library_dirs=[package],
)
setup(name="loop", ext_modules=cythonize([loop], include_path=[str(Path(package).parent)]))
