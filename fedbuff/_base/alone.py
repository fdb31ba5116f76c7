"""What one thread does at a time, and not again while it does it: another call is an error, not a wait."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

__all__ = ["OneAtATime", "alone"]

Owner = TypeVar("Owner")
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_RUNNER = "_runner"  # the attribute that an object has while a call is under way


def busy_error() -> ValueError:
    return ValueError("the replay is running already, in another thread or in a function that it calls")


def alone(method: Callable[Concatenate[Owner, Arguments], Result]) -> Callable[Concatenate[Owner, Arguments], Result]:
    """A method that raises where another one of these is under way on the same object.

    An interrupt at any moment leaves the object free: the mark is set in one operation, and only its owner removes it.
    """

    @wraps(method)
    def guarded(self: Owner, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        me, marks = object(), self.__dict__
        try:
            if marks.setdefault(_RUNNER, me) is not me:
                raise busy_error()
            return method(self, *args, **kwargs)
        finally:
            if marks.get(_RUNNER) is me:
                del marks[_RUNNER]

    return guarded


class OneAtATime:
    """An engine that can be asked nothing while it runs."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine

    def __getattr__(self, name: str) -> Any:
        if _RUNNER in self.__dict__:
            raise busy_error()
        return getattr(self.engine, name)

    @alone
    def run(self, max_steps: int, threads: int) -> int:
        code: int = self.engine.run(max_steps, threads)
        return code
