"""How fast a report's timeline answers at 10^6 arrivals: python benches/timeline_page.py, with chromium and selenium.

Prints, for windows from the whole schedule down to single tasks, the milliseconds from a change of range until all time
axes of the page are drawn anew, and those of the timeline's own painting; the best of five.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from selenium import webdriver

import fedbuff as fb
from fedbuff._report import write_report
from fedbuff._study.run_folder import run_study

N_CLIENTS = 1000
TABLES = {
    "name": "a million arrivals",
    "problem": {"kind": "quadratic", "centers": [[float(i % 7), 1.0] for i in range(N_CLIENTS)]},
    "trace": {
        "kind": "model",
        "n_clients": N_CLIENTS,
        "compute": {"kind": "exponential", "scale": 1.0},
        "client_speed": {"kind": "log_normal", "mean": 0.0, "sigma": 1.0},
    },
    "strategy": {"kind": "fedbuff", "buffer_size": 10},
    "local": {"steps": 1, "lr": 0.05},
    "schedule": {"server_steps": 100_000, "concurrency": 100},
}
ZOOM = """
const [part, shift, done] = arguments, t = report.state.timelines.get(0), span = t.last - t.begin;
const from = t.begin + span * shift * (1 - part), began = performance.now();
Plotly.relayout("timeline", {"xaxis.range": [from, from + span * part]}).then(() => report.linked).then(
  () => done([performance.now() - began, report.redraws.at(-1), report.visible]));
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        write_report([run_study(fb.StudyConfig(TABLES), Path(folder) / "run")], page)
        print(f"report: {page.stat().st_size / 1e6:.1f} MB")
        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium") or ""
        for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1300,2000"):
            options.add_argument(flag)
        browser = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
        try:
            browser.set_script_timeout(60)
            browser.get(page.as_uri())
            browser.execute_async_script("const done = arguments[0]; report.ready.then(() => done())")
            for part in (1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001):
                runs = [browser.execute_async_script(ZOOM, part, shift / 5) for shift in range(5)]
                whole, paint = min(run[0] for run in runs), min(run[1] for run in runs)
                print(
                    f"window {part:7.3f}: {whole:6.1f} ms for the page, {paint:5.1f} ms for the timeline; {runs[-1][2]}"
                )
        finally:
            browser.quit()


if __name__ == "__main__":
    main()
