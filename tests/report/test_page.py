"""A report in a real browser: it opens without errors or network, answers to hovering and zooming, in both themes."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pages import errors, wait

import fedbuff as fb
from fedbuff._report import _levels, write_report
from fedbuff._study.run_folder import Run, load_run, run_study

pytest.importorskip("plotly")

TABLES: dict[str, Any] = {
    "seeds": [0, 1],
    "problem": {"kind": "quadratic", "centers": [[float(i), 1.0] for i in range(20)]},
    "trace": {"kind": "model", "n_clients": 20, "compute": {"kind": "exponential", "scale": 1.0}},
    "strategy": {"kind": "fedbuff", "buffer_size": 4},
    "local": {"steps": 2, "lr": 0.05},
    "schedule": {"server_steps": 100},
    "replay": {"metrics": ["loss", "grad_norm_sq"]},
    "name": "one </script><b>",  # a name is text, whatever is in it
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    folder = tmp_path_factory.mktemp("runs")
    one = fb.StudyConfig(TABLES)
    run_study(one, folder / "one")
    run_study(
        one.changed({"strategy": {"kind": "fedasync"}, "schedule.server_steps": 400, "name": "two"}), folder / "two"
    )
    return [load_run(folder / "one"), load_run(folder / "two")]


@pytest.fixture(scope="module")
def page(runs: list[Run]) -> Path:
    path = runs[0].folder.parent / "report.html"
    write_report(runs, path, "A <title>")
    return path


@pytest.fixture
def opened(browser: Any, page: Path) -> Any:
    browser.get(page.as_uri())
    wait(browser, "report.ready")
    return browser


def test_one_file_without_links(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    own = re.sub(r'<script id="plotly".*?</script>', "", text, flags=re.DOTALL)
    assert len(own) < len(text) / 2 and len(text) < 2 * 1024 * 1024
    assert not re.findall(r"""(?:src|href)=["'](?!data:)""", own) and "A &lt;title&gt;" in own
    assert text.count("</script>") == text.count("<script")


def test_participation_is_that_of_the_schedule(runs: list[Run], page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    data = json.loads(re.findall(r'<script id="data"[^>]*>(.*?)</script>', text, re.DOTALL)[0])
    for run, shown in zip(runs, data["runs"], strict=True):
        assert shown["contribution"] == run.seeds[0].schedule.summary()["participation_by_speed"]
        assert np.mean(shown["contribution"]) == pytest.approx(1.0)  # 20 clients: ten groups of two


def test_it_opens(opened: Any, runs: list[Run]) -> None:
    assert errors(opened) == []
    cells = [cell.text for cell in opened.find_elements("css selector", "#outcomes tr td:first-child")]
    assert cells == ["one </script><b>", "two"]
    configs = opened.find_element("id", "configs").text.splitlines()
    assert configs[1].startswith("schedule.server_steps 100 400")
    assert runs[0].seeds[0].result["model_sha256"] in opened.find_element("id", "provenance").get_attribute(
        "textContent"
    )
    names = opened.execute_script(
        "return document.getElementById('curves').data.filter((t) => t.name).map((t) => t.name)"
    )
    assert names == ["one </script><b>", "two"]
    x, mean = opened.execute_script("const line = document.getElementById('curves').data[2]; return [line.x, line.y]")
    both = [np.interp(x, seed.history["time"], seed.history["loss"]) for seed in runs[0].seeds]
    assert len(x) > 50 and mean == pytest.approx(np.mean(both, axis=0).tolist())


def test_hovering_shows_a_task(opened: Any, runs: list[Run]) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    schedule = runs[0].seeds[0].schedule
    row = int(np.argmax(schedule.arrive_time - schedule.start_time))
    middle = float(schedule.start_time[row] + schedule.arrive_time[row]) / 2
    x, y = opened.execute_script(
        "const f = document.getElementById('timeline')._fullLayout;"
        "return [f._size.l + f.xaxis.d2p(arguments[0]), f._size.t + f.yaxis.d2p(arguments[1])]",
        middle,
        int(schedule.client[row]),
    )
    chart = opened.find_element("id", "timeline")
    size = chart.size
    at = int(x - size["width"] / 2), int(y - size["height"] / 2)
    ActionChains(opened).move_to_element_with_offset(chart, *at).perform()
    lines = opened.find_element("id", "tip").text.splitlines()
    assert lines[0] == f"client {schedule.client[row]}, task {schedule.task[row]}"
    begin, end = (float(text) for text in re.findall(r"([\d.]+) s(?: to|\b)", lines[1])[:2])
    assert begin == pytest.approx(schedule.start_time[row], rel=1e-4)
    assert end == pytest.approx(schedule.arrive_time[row], rel=1e-4)
    assert lines[2].startswith(f"version {schedule.version[row]}, staleness {schedule.staleness[row]}, server step")
    assert lines[3] == "used"


def test_zooming_moves_all_time_axes(opened: Any, runs: list[Run]) -> None:
    wait(opened, "Plotly.relayout('timeline', {'xaxis.range': [2, 5]}).then(() => report.linked)")
    ranges = opened.execute_script(
        "return ['timeline', 'curves', 'over_time'].map((id) => document.getElementById(id)._fullLayout.xaxis.range)"
    )
    assert ranges == [[2, 5]] * 3
    schedule = runs[0].seeds[0].schedule
    ended = (schedule.arrive_time >= 2) & (schedule.start_time <= 5)
    flying = schedule.in_flight_start_time <= 5
    assert opened.execute_script("return report.visible") == {"kind": "tasks", "count": int(ended.sum() + flying.sum())}
    wait(opened, "Plotly.relayout('curves', {'xaxis.autorange': true}).then(() => report.linked)")
    count = opened.execute_script("return report.visible.count")
    assert count == schedule.n_arrivals + schedule.in_flight_client.size
    opened.find_element("css selector", "#against option[value=step]").click()
    opened.find_element("css selector", "#which option[value='1']").click()
    wait(opened, "new Promise((go) => setTimeout(go, 300))")
    assert opened.execute_script("return report.visible.count") > count / 2 and errors(opened) == []


def contrast(one: tuple[int, ...], other: tuple[int, ...]) -> float:
    """Of two colours, as WCAG 2 defines it."""
    channels = [np.array(colour[:3]) / 255 for colour in (one, other)]
    linear = [np.where(c <= 0.03928, c / 12.92, ((c + 0.055) / 1.055) ** 2.4) for c in channels]
    high, low = sorted((float(c @ [0.2126, 0.7152, 0.0722]) for c in linear), reverse=True)
    return (high + 0.05) / (low + 0.05)


def colour(text: str) -> tuple[int, ...]:
    return tuple(int(float(part)) for part in re.findall(r"[\d.]+", text)[:3])


def test_both_themes_are_legible(opened: Any) -> None:
    seen = set()
    for _ in range(2):
        for selector in ("h2", "#outcomes td", ".note", "#curves .xtick text", "button"):
            element = opened.find_element("css selector", selector)
            painted = "fill" if selector.endswith("text") else "color"
            back = opened.find_element("tag name", "body").value_of_css_property("background-color")
            assert contrast(colour(element.value_of_css_property(painted)), colour(back)) >= 4.5, selector
        seen.add(back)
        opened.find_element("id", "theme").click()
        wait(opened, "report.ready")
    assert len(seen) == 2 and errors(opened) == []


def test_many_tasks_are_drawn_by_levels(browser: Any, runs: list[Run], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_levels, "MOST_TASKS", 50)
    path = runs[0].folder.parent / "many.html"
    write_report(runs[1:], path)
    browser.get(path.as_uri())
    wait(browser, "report.ready")
    assert browser.execute_script("return report.visible") == {"kind": "level", "level": 0, "cells": 20 * 400}
    end = runs[1].seeds[0].schedule.end_time
    seen = []
    for part in (0.3, 0.1, 0.01):
        change = f"{{'xaxis.range': [{end / 2}, {end * (0.5 + part)}]}}"
        wait(browser, f"Plotly.relayout('timeline', {change}).then(() => report.linked)")
        seen.append(browser.execute_script("return report.visible"))
    assert seen[0]["kind"] == "level" and seen[0]["level"] == 1
    assert seen[-1]["kind"] == "tasks" and seen[-1]["count"] <= 50
    picture = browser.execute_script("return document.getElementById('tasks').toDataURL()")
    assert len(base64.b64decode(picture.partition(",")[2])) > 500 and errors(browser) == []


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine runs with a target that the slow ones do not reach."""
    folder = tmp_path_factory.mktemp("nine")
    base = fb.StudyConfig(TABLES | {"target": {"loss": 1.3 * 16.625}})
    for number in range(9):
        changes = {"name": f"a run of some length {number}", "local.lr": 0.4 ** (number + 1), "seeds": [0]}
        run_study(base.changed(changes), folder / str(number))
    write_report([load_run(folder / str(number)) for number in range(9)], folder / "nine.html")
    return folder / "nine.html"


@pytest.mark.parametrize("width", [1300, 400])
def test_many_runs_have_a_legend_beside_their_curves(browser: Any, many: Path, width: int) -> None:
    browser.set_window_size(width, 2400)
    try:
        if browser.execute_script("return window.innerWidth") > width:
            browser.execute_cdp_cmd(
                "Emulation.setDeviceMetricsOverride",
                {"width": width, "height": 2400, "deviceScaleFactor": 1, "mobile": False},
            )
        browser.get(many.as_uri())
        wait(browser, "report.ready")
        assert errors(browser) == []
        box = "const r = document.querySelector(arguments[0]).getBoundingClientRect();"
        box += "return [r.left, r.top, r.right, r.bottom]"
        plot, legend = (browser.execute_script(box, f"#curves .{part}") for part in ("nsewdrag", "legend"))
        assert legend[0] >= plot[2] or legend[1] >= plot[3], (plot, legend)
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        styles = browser.execute_script(
            "return document.getElementById('curves').data.filter((t) => t.name).map((t) => t.line.color + t.line.dash)"
        )
        assert len(set(styles)) == 9
        texts = [text.text for text in browser.find_elements("css selector", "#curves .annotation-text")]
        assert len(texts) == 1 and texts[0].startswith("target 21.6")
        heads = [head.get_attribute("textContent") for head in browser.find_elements("css selector", "#outcomes th")]
        at = heads.index("time to loss (s)")
        rows = browser.find_elements("css selector", "#outcomes tr")[1:]
        times = [row.find_elements("css selector", "td")[at].get_attribute("textContent") for row in rows]
        assert times[-1] == "not reached" and float(times[0]) > 0
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        browser.set_window_size(1300, 2400)


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="runs: expected one or more, got none"):
        write_report([], tmp_path / "x.html")
    assert list(tmp_path.iterdir()) == []


def test_the_data_is_json(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    found = re.search(r'<script id="data" type="application/json">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    runs = json.loads(found.group(1))["runs"]
    assert [run["name"] for run in runs] == ["one </script><b>", "two"] and len(runs[0]["histories"]) == 2


def test_the_page_runs_its_own_scripts_alone(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    (policy,) = re.findall(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', text)
    assert text.index(policy) < text.index("<style") < text.index("<script")
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'" and "unsafe" not in rules["script-src"]
    scripts = re.findall(r"<script>(.*?)</script>", text, flags=re.DOTALL)
    (packed,) = re.findall(r'<script id="plotly" type="application/octet-stream">(.*?)</script>', text, flags=re.DOTALL)
    scripts.append(gzip.decompress(base64.b64decode(packed)).decode())
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    assert rules["script-src"].split() == [f"'sha256-{text}'" for text in hashes]
    assert not re.findall(r"\son[a-z]+=", text[: text.index("<script")])
