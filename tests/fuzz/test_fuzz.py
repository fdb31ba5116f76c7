"""Short forms of the Python parts of `make fuzz`, from fixed seeds. Those in C++ run what lies in tests/corpus."""

from __future__ import annotations

import faulthandler
import random
import sys
import warnings
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the campaign is Linux's")

pytest.importorskip("pyarrow")
import calls  # noqa: E402
import files  # noqa: E402
import found  # noqa: E402
import mutations  # noqa: E402
import workers  # noqa: E402


@pytest.mark.filterwarnings("ignore")
def test_sequences_of_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for seed in range(60):
        fault = calls.once(random.Random(seed), tmp_path)
        assert fault == 1, f"seed {seed}: {fault}"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", files.damaged.KINDS)
def test_files_that_were_changed(name: str, tmp_path: Path) -> None:
    once = files.reader(name, tmp_path)
    for seed in range(12):
        fault = once(random.Random(seed), tmp_path)
        assert fault == 1, f"seed {seed}: {fault}"


def test_a_change_is_a_change() -> None:
    for data in (b"PK", b"", b"\x80\x04K\x01.", b"a,b\n1,2\n", b'{"a": [1, "x", null]}', b"\x93NUMPY"):
        made = {mutations.changed(data, random.Random(seed)) for seed in range(40)}
        assert len(made) >= 3, data


def test_what_ends_a_worker_is_counted_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os
    import signal

    monkeypatch.setattr(found, "FOUND", tmp_path / "found")
    monkeypatch.setattr(workers, "MOST_FAULTS", 3)
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "a.bin").write_bytes(b"of it")

    def crash(rng: random.Random, where: Path) -> int | str:
        faulthandler.disable()  # pytest's would print where the child was
        os.kill(os.getpid(), signal.SIGSEGV)
        return 1

    def hang(rng: random.Random, where: Path) -> int | str:
        os.kill(os.getpid(), signal.SIGALRM)
        return 1

    def complain(rng: random.Random, where: Path) -> int | str:
        return "RuntimeError: of ours"

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # forks of a process with threads: these do nothing but end
        rows = [workers.run(once.__name__, once, 30.0, 0, folder) for once in (crash, hang, complain)]
    assert [(row.crashes, row.hangs, row.exceptions) for row in rows] == [(3, 0, 0), (0, 3, 0), (0, 0, 3)]
    assert (tmp_path / "found" / "crash" / "0-a.bin").read_bytes() == b"of it"
    assert "RuntimeError: of ours" in (tmp_path / "found" / "complain" / "0.txt").read_text()


def test_pieces_of_a_campaign_add_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import campaign

    monkeypatch.setattr(campaign, "FIGURES", tmp_path)
    monkeypatch.setattr(campaign.reliability_page, "PAGE", tmp_path / "page.md")
    (tmp_path / "page.md").write_text("<!-- begin fuzz -->\n<!-- end fuzz -->\n")
    row = found.Row("C++: server", 100, 2.0, 0, 0, 0, 100)
    campaign.add("targets", row, "one", anew=False)
    campaign.add("targets", found.Row("C++: queue", 7, 1.0, 1, 0, 0, 7), "one", anew=False)
    campaign.add("targets", row, "two", anew=False)
    rows, builds = campaign.read_figures("targets")
    assert rows["C++: server"] == found.Row("C++: server", 200, 4.0, 0, 0, 0, 200)
    assert builds == ["one", "two"]
    campaign.add("targets", found.Row("C++: queue", 9, 1.0, 0, 0, 0, 9), "three", anew=True)
    rows, builds = campaign.read_figures("targets")
    assert (rows["C++: queue"].executions, rows["C++: queue"].crashes) == (9, 0)
    assert rows["C++: server"].executions == 200


def test_a_campaign_adds_to_what_is_on_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import campaign

    page = tmp_path / "page.md"
    page.write_text("Before.\n<!-- begin fuzz -->\n<!-- end fuzz -->\nAfter.\n")
    monkeypatch.setattr(campaign.reliability_page, "PAGE", page)
    monkeypatch.setattr(campaign.reliability_page, "FIGURES", tmp_path)
    row, other = found.Row("C++: server", 1234, 60.0, 0, 0, 0, 1234), found.Row("random logs", 7, 6.0, 0, 0, 1)
    for name, piece in (("first", row), ("second", row), ("second", row)):
        monkeypatch.setattr(campaign, "FIGURES", tmp_path / name)  # a checkout of its own
        campaign.add("targets", piece, name, anew=False)
        campaign.add("schedules", other, name, anew=False)
        campaign.publish()
    rows, builds = campaign.rows_of_page(page.read_text())
    assert rows["C++: server"] == found.Row("C++: server", 3702, 180.0, 0, 0, 0, 3702)
    assert rows["random logs"].exceptions == 3
    assert builds == ["first", "second"]
    assert "3,702 executions of C++ targets" in page.read_text()
