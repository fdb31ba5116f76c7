"""What the tests of pages ask a browser."""

from __future__ import annotations

from typing import Any


def wait(browser: Any, promise: str) -> Any:
    """What a promise of the page comes to; its error is the test's."""
    ends = "(v) => done([true, v]), (e) => done([false, String(e.stack)])"
    code = f"const done = arguments[0]; Promise.resolve({promise}).then({ends})"
    good, value = browser.execute_async_script(code)
    assert good, value
    return value


def errors(browser: Any) -> list[str]:
    return [entry["message"] for entry in browser.get_log("browser")]
