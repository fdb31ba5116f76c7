"""The simulator of the documentation: its schedules have the bits of fb.schedule, and its page works in a browser."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedbuff as fb

ROOT = Path(__file__).parents[2]
COMPILED = ROOT / "build" / "simulator" / "schedule.js"
PAGE = ROOT / "docs" / "simulator" / "simulator.html"

needs_compiled = pytest.mark.skipif(
    not COMPILED.exists(), reason="`make docs` compiles it where Emscripten is installed"
)

# Clients, concurrency, K, steps, seed, kind and numbers of the law; and the same law here.
SETTINGS: list[tuple[tuple[Any, ...], fb.Exponential | fb.LogNormal | fb.Pareto | fb.Uniform | fb.Constant]] = [
    ((1000, 100, 10, 300, 0, 2, 1.0, 0.0), fb.Exponential(1.0)),
    ((50, 12, 4, 60, 11, 5, 0.0, 0.75), fb.LogNormal(0.0, 0.75)),
    ((50, 12, 4, 60, 3, 6, 1.25, 0.5), fb.Pareto(1.25, 0.5)),
    ((9, 9, 3, 100, 5, 1, 0.5, 1.5), fb.Uniform(0.5, 1.5)),
    ((20, 6, 5, 40, 1, 0, 1.0, 0.0), fb.Constant(1.0)),
]


def same(shown: dict[str, Any], given: tuple[Any, ...], law: Any) -> None:
    clients, concurrency, size, steps, seed = given[:5]
    model = fb.DelayModel(n_clients=clients, compute=law)
    made = fb.schedule(model, fb.FedBuff(size), concurrency, server_steps=steps, seed=seed)
    n = len(made.client)
    assert shown["client"][:n] == made.client.tolist()
    for name, column in (("start", made.start_time), ("arrive", made.arrive_time), ("stepTime", made.step_time)):
        np.testing.assert_array_equal(np.array(shown[name][: len(column)]), column)


@needs_compiled
@pytest.mark.parametrize(("given", "law"), SETTINGS)
def test_webassembly_has_the_bits_of_the_package(given: tuple[Any, ...], law: Any) -> None:
    if shutil.which("node") is None:
        pytest.skip("there is no node here")
    program = f"""
      const create = require({json.dumps(str(COMPILED))});
      create().then((m) => {{
        const n = m._simulate({", ".join(map(str, given))});
        const doubles = (at, size) => Array.from(m.HEAPF64.slice(at / 8, at / 8 + size));
        console.log(JSON.stringify({{
          client: Array.from(m.HEAP32.slice(m._client() / 4, m._client() / 4 + n)),
          start: doubles(m._start_time(), n), arrive: doubles(m._arrive_time(), n),
          stepTime: doubles(m._step_time(), m._steps()),
        }}));
      }});
    """
    done = subprocess.run(["node", "-e", program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    same(json.loads(done.stdout), given, law)


def wait_until(browser: Any, condition: str) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, 60).until(lambda page: page.execute_script(f"return {condition}"))


@needs_compiled
def test_sliders_move_the_pictures(browser: Any, tmp_path: Path) -> None:
    shutil.copy(PAGE, tmp_path)
    shutil.copy(COMPILED, tmp_path)
    browser.get((tmp_path / "simulator.html").as_uri())
    wait_until(browser, "document.body.dataset.ready === 'yes'")
    assert not browser.find_element("id", "missing").is_displayed()
    read = (
        "return {client: Array.from(made.client), start: Array.from(made.start), arrive: Array.from(made.arrive),"
        " stepTime: Array.from(made.stepTime)}"
    )
    same(browser.execute_script(read), *SETTINGS[0])

    def seen() -> list[str]:
        pictures = [
            browser.execute_script(f"return document.getElementById('{name}').toDataURL()")
            for name in ("timeline", "staleness")
        ]
        return [*pictures, browser.find_element("id", "numbers").text]

    before = seen()
    assert "mean staleness" in before[2] and "(concurrency - 1) / K = 9.90" in before[2]
    move = "const f = document.forms[0]; f[arguments[0]].value = arguments[1]; f.dispatchEvent(new Event('input'))"
    for name, value in (("buffer_size", 20), ("concurrency", 40), ("law", 5), ("spread", 1.5)):
        browser.execute_script(move, name, value)
        after = seen()
        assert all(one != other for one, other in zip(before, after, strict=True)), name
        before = after
    model = fb.DelayModel(n_clients=1000, compute=fb.LogNormal(0.0, 1.5))
    made = fb.schedule(model, fb.FedBuff(20), 40, server_steps=300, seed=0)
    assert browser.execute_script("return made.steps") == 300
    assert browser.execute_script("return made.end") == made.step_time[-1]
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []


def test_the_page_says_where_it_was_not_compiled(browser: Any, tmp_path: Path) -> None:
    shutil.copy(PAGE, tmp_path)
    browser.get((tmp_path / "simulator.html").as_uri())
    assert browser.find_element("id", "missing").is_displayed()
