"""Methods of which one call runs at a time, from any thread: a second call raises and does not wait."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

__all__ = ["OneAtATime", "alone"]

Owner = TypeVar("Owner")
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_RUNNER = "_runner"  # an object has this attribute while a call runs


def busy_error() -> ValueError:
    return ValueError("the replay is running already, in another thread or in a function that it calls")


def _marked(marks: dict[str, Any], function: Callable[..., Result], *args: Any, **kwargs: Any) -> Result:
    me = object()
    try:
        if marks.setdefault(_RUNNER, me) is not me:
            raise busy_error()
        return function(*args, **kwargs)
    finally:
        if marks.get(_RUNNER) is me:
            del marks[_RUNNER]


def alone(method: Callable[Concatenate[Owner, Arguments], Result]) -> Callable[Concatenate[Owner, Arguments], Result]:
    """A method that raises while another method with this decorator runs on the same object.

    An interrupt at any moment leaves the object free: the mark is set in one operation, and only its owner removes it.
    """

    @wraps(method)
    def guarded(self: Owner, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        return _marked(self.__dict__, method, self, *args, **kwargs)

    return guarded


class OneAtATime:
    """Objects that share a mark: while a method of one runs, no method of any of them can be called."""

    def __init__(self, engine: Any, other: OneAtATime | None = None) -> None:
        self.engine = engine
        self._marks: dict[str, object] = {} if other is None else other._marks

    def __getattr__(self, name: str) -> Any:
        return partial(_marked, self._marks, getattr(self.engine, name))
