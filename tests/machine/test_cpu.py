"""The name of the processor, also where Linux gives none."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from fedbuff._machine.cpu import cpu_name


def test_the_name_is_the_first_that_linux_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "processor : 0\nmodel name\t: One CPU @ 2 GHz\nmodel name : another\n"
    monkeypatch.setattr(Path, "read_text", lambda self, encoding: text)
    assert cpu_name() == "One CPU @ 2 GHz"


@pytest.mark.parametrize(("processor", "want"), [("arm", "arm"), ("", "aarch64")])
def test_without_a_model_name(processor: str, want: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(self: Path, encoding: str) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", nothing)
    monkeypatch.setattr(platform, "processor", lambda: processor)
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert cpu_name() == want
