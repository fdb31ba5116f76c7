"""Someone else's Cython: a module that cimports the server is compiled against the package and run."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fedbuff as fb
from fedbuff import backends

PACKAGE = Path(fb.__file__).parent
MODULE = """
# cython: language_level=3
from libc.stdint cimport int32_t, int64_t

from fedbuff cimport DeltaBuffer, Server
from fedbuff._fedbuff_h cimport FB_OK, FB_STEPPED, fb_model, fb_model_release


def feed(Server server, const double[::1] delta, int n):
    '''n tasks without the GIL; how many steps the server made.'''
    cdef int64_t version
    cdef fb_model* model
    cdef int32_t outcome
    cdef int steps = 0
    with nogil:
        for _ in range(n):
            if server.download_raw(&version, &model) != FB_OK:
                break
            fb_model_release(model)
            if server.upload_raw(&delta[0], version, 1.0, &outcome) != FB_OK:
                break
            steps += outcome == FB_STEPPED
    return steps


def average(DeltaBuffer buffer, const double[:, ::1] deltas, double[::1] w):
    cdef Py_ssize_t i
    cdef bint good = True
    with nogil:
        for i in range(deltas.shape[0]):
            good = good and buffer.add_raw(&deltas[i, 0], 1.0 / deltas.shape[0]) == FB_OK
        good = good and buffer.step_raw(&w[0], 1.0, &w[0]) == FB_OK
    return good
"""
SETUP = """
import sys
from Cython.Build import cythonize
from setuptools import Extension, setup

package, include = sys.argv[-2:]
del sys.argv[-2:]
module = Extension("mine", ["mine.pyx"], include_dirs=[include], libraries=["fedbuff"], library_dirs=[package],
                   runtime_library_dirs=[package])
setup(name="mine", ext_modules=cythonize([module], include_path=[package + "/.."]))
"""


@pytest.mark.skipif(backends.current().name != "cpp", reason="cimport needs the compiled backend")
def test_a_module_that_cimports_the_server(tmp_path: Path) -> None:
    pytest.importorskip("Cython")
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    (tmp_path / "mine.pyx").write_text(MODULE)
    (tmp_path / "setup.py").write_text(SETUP)
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace", str(PACKAGE), fb.get_include()]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = tmp_path.glob("mine*.so")
    spec = importlib.util.spec_from_file_location("mine", built)
    assert spec is not None and spec.loader is not None
    mine = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(mine)

    server = fb.Server(np.zeros(3), fb.FedBuff(buffer_size=4))
    assert mine.feed(server, np.array([1.0, 2.0, 3.0]), 10) == 2
    assert (server.version, server.fill, server.outstanding) == (2, 2, 0)
    np.testing.assert_array_equal(server.w, [-2.0, -4.0, -6.0])
    w = np.ones(3)
    assert mine.average(fb.DeltaBuffer(3), np.array([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]]), w)
    np.testing.assert_array_equal(w, [-1.0, -1.0, -1.0])
    with pytest.raises(TypeError):
        mine.feed(object(), w, 1)
