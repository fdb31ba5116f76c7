"""What all tests share: how they are dealt to processes, a browser, and the package as others get it, made once."""

from __future__ import annotations

import shutil
import signal
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import installs
import pytest

# A shell starts what it runs in the background with Ctrl-C ignored, and so would be all processes of the tests.
signal.signal(signal.SIGINT, signal.default_int_handler)

_WHEEL = ("tests/packaging/test_wheel.py", "tests/embedding/test_examples.py")  # both need the wheel, made once


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Where tests run in several processes, those of a file stay together, and so do the files that need the wheel."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file: str = nodeid.partition("::")[0]
            return "the wheel" if file in _WHEEL else file

    return ByFile(config, log)


@pytest.fixture(scope="session")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source archive, made and unpacked."""
    tree = installs.copy_tree(tmp_path_factory.mktemp("sdist") / "tree")
    make = "from setuptools import build_meta; print(build_meta.build_sdist('dist'))"
    installs.run("-c", make, cwd=tree, FEDBUFF_BUILD="pure", PYTHONWARNINGS="ignore", PYTHONPATH=str(tree))
    (archive,) = (tree / "dist").glob("*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(tree.parent, filter="data")
    return tree.parent / archive.name.removesuffix(".tar.gz")


@pytest.fixture(scope="session")
def wheel(unpacked: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("c++") is None:
        pytest.skip("no C++ compiler")
    folder = tmp_path_factory.mktemp("wheel")
    tree = Path(shutil.copytree(unpacked, folder / "tree"))  # what is built stays out of the archive's own tree
    installs.copy_objects(tree)
    installs.pip("wheel", "--quiet", "--wheel-dir", str(folder), ".", cwd=tree, FEDBUFF_BUILD="require")
    (built,) = folder.glob("fedbuff-*.whl")
    return built


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site")
    installs.pip("install", "--quiet", "--target", str(target), str(wheel), cwd=target)
    return target


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, without a screen and without a network."""
    chromium, driver_path = shutil.which("chromium"), shutil.which("chromedriver")
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    if chromium is None or driver_path is None:
        pytest.skip("there is no chromium with its driver here")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    no_network = "--host-resolver-rules=MAP * ~NOTFOUND"
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1300,2400", no_network):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver_path))
    driver.set_script_timeout(60)
    yield driver
    driver.quit()
