"""The report of a sweep and of a search: its numbers are those of the results, and it works in a real browser."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pages import errors, wait

import fedbuff as fb
from fedbuff._cli import main
from fedbuff._report import is_sweep, write_sweep_report

pytest.importorskip("plotly")

BASE: dict[str, Any] = {
    "problem": {"kind": "quadratic", "centers": [[float(i), 1.0] for i in range(20)]},
    "trace": {"kind": "model", "n_clients": 20, "compute": {"kind": "exponential", "scale": 1.0}},
    "strategy": {"kind": "fedbuff", "buffer_size": 4},
    "local": {"steps": 2, "lr": 0.05},
    "schedule": {"max_time": 8.0, "concurrency": 10},
    "replay": {"eval_every": 1},
}
GRID = {"strategy.buffer_size": [1, 2, 4, 8], "schedule.concurrency": [3, 10, 20]}
TARGET = ("loss", 22.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweeps")
    fb.sweep(BASE, GRID, seeds=range(3), out=folder / "grid", progress=False)
    fb.tune(BASE, GRID, seeds=4, target=dict([TARGET]), out=folder / "search", progress=False)
    write_sweep_report(folder / "grid", folder / "grid.html", "Sizes <b>", TARGET)
    write_sweep_report(folder / "search", folder / "search.html")
    return folder


def rows_of(browser: Any) -> list[dict[str, str]]:
    """The table of arms, by its heads."""
    texts = browser.execute_script(
        "return [...document.querySelectorAll('#arms tr')].map((row) => [...row.cells].map((c) => c.textContent))"
    )
    return [dict(zip(texts[0], row, strict=True)) for row in texts[1:]]


def heat_of(browser: Any) -> list[list[float | None]]:
    return browser.execute_script("return document.getElementById('heat').data[0].z")


def test_the_map_has_the_times_of_the_arms(browser: Any, folder: Path) -> None:
    browser.get((folder / "grid.html").as_uri())
    wait(browser, "report.ready")
    assert errors(browser) == []
    times = fb.load_sweep(folder / "grid").time_to(*TARGET).rows
    medians = {(row["strategy.buffer_size"], row["schedule.concurrency"]): row["median"] for row in times}
    expected = [[medians[K, C] for C in GRID["schedule.concurrency"]] for K in GRID["strategy.buffer_size"]]
    assert np.isinf(expected).any() and np.isfinite(expected).any()  # the target tells arms apart
    shown = [[np.inf if value is None else value for value in row] for row in heat_of(browser)]
    np.testing.assert_allclose(shown, expected)
    rows = rows_of(browser)
    assert len(rows) == 12 and rows[-1]["time to loss 22 (s)"] == "not reached"
    best = min(medians, key=lambda pair: medians[pair])
    assert (rows[0]["buffer_size"], rows[0]["concurrency"]) == tuple(map(str, best))
    assert re.fullmatch(r"[\d.]+ \([\d.]+ to [\d.]+\)", rows[0]["loss at the end"])  # three seeds


def test_options_change_the_map(browser: Any, folder: Path) -> None:
    browser.get((folder / "grid.html").as_uri())
    wait(browser, "report.ready")
    before = heat_of(browser)
    for name, value in (("across", "strategy.buffer_size"), ("value", "loss")):
        change = "const s = document.getElementById(arguments[0]); s.value = arguments[1];"
        browser.execute_script(change + "s.dispatchEvent(new Event('change'))", name, value)
        wait(browser, "report.ready")
        if name == "across":
            assert heat_of(browser) == [list(column) for column in zip(*before, strict=True)]
    table = fb.load_sweep(folder / "grid").table("loss").rows
    assert np.ravel(heat_of(browser)).min() == pytest.approx(min(row["mean"] for row in table))


def test_a_search_shows_each_arm_in_its_last_rung(browser: Any, folder: Path) -> None:
    browser.get((folder / "search.html").as_uri())
    wait(browser, "report.ready")
    assert errors(browser) == []
    places = sorted((folder / "search").glob("rung-*"))
    assert len(places) > 1 and all(is_sweep(place) for place in places)
    rungs = [fb.load_sweep(place) for place in places]
    rows = rows_of(browser)
    assert sorted(row["last rung"] for row in rows) == sorted(
        str(max(n for n, rung in enumerate(rungs, 1) if arm in rung.arms)) for arm in rungs[0].arms
    )
    winner = rungs[-1].time_to(*TARGET).rows
    assert float(rows[0]["time to loss 22 (s)"]) == pytest.approx(min(row["median"] for row in winner), rel=1e-3)
    lines = browser.execute_script("return document.getElementById('curves').data.filter((t) => t.name).length")
    assert lines == len(rungs[0].arms)


@pytest.mark.parametrize("width", [1300, 400])
@pytest.mark.parametrize("name", ["grid", "search"])
def test_it_fits_the_window_in_both_themes(browser: Any, folder: Path, name: str, width: int) -> None:
    size = {"width": width, "height": 2400, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        browser.get((folder / f"{name}.html").as_uri())
        wait(browser, "report.ready")
        colours = []
        for _ in range(2):
            assert browser.execute_script("return document.documentElement.scrollWidth") <= width
            colours.append(browser.execute_script("return getComputedStyle(document.body).backgroundColor"))
            browser.find_element("id", "theme").click()
            wait(browser, "report.ready")
        assert len(set(colours)) == 2 and errors(browser) == []
        box = "const r = document.querySelector(arguments[0]).getBoundingClientRect();"
        box += "return [r.left, r.top, r.right, r.bottom]"
        plot, legend = (browser.execute_script(box, f"#curves .{part}") for part in ("nsewdrag", "legend"))
        assert legend[0] >= plot[2] or legend[1] >= plot[3], (plot, legend)
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_one_file_below_two_megabytes(folder: Path) -> None:
    for path in folder.glob("*.html"):
        text = path.read_text(encoding="utf-8")
        own = re.sub(r'<script id="plotly".*?</script>', "", text, flags=re.DOTALL)
        assert len(text) < 2 * 1024 * 1024 and not re.findall(r"""(?:src|href)=["'](?!data:)""", own)
    assert "<title>Sizes &lt;b&gt;</title>" in (folder / "grid.html").read_text(encoding="utf-8")


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stopped:
        main(list(arguments))
    return int(stopped.value.code or 0)


def test_the_command(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("report", str(folder / "grid"), "--target", "loss=22") == 0
    assert capsys.readouterr().out == f"{(folder / 'grid-report.html').resolve()}: 36 runs\n"
    assert sorted(path.name for path in (folder / "grid").iterdir()) == ["lock", "parts", "sweep.json"]
    assert run("report", str(folder / "grid"), "-o", str(tmp_path / "x.html"), "--target", "accuracy=0.5") != 0
    assert "target: expected one of loss, got 'accuracy'" in capsys.readouterr().err
    assert run("report", str(folder / "grid"), str(folder / "search")) == 2
    assert "expected one folder of a sweep or a search" in capsys.readouterr().err
    assert run("report", str(folder / "grid"), "--target", "loss=low") == 2
    assert "--target: expected METRIC=VALUE" in capsys.readouterr().err
    assert not (tmp_path / "x.html").exists()
