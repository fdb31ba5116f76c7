"""The reference event loop compiled by Numba: the same source, the same bits, for where nothing else was compiled.

Importing this teaches Numba the helpers of the reference.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numba.extending import register_jitable

from ..python import resolver as reference
from ..spec import Plan, Resolver
from . import random as _numba_random  # noqa: F401  teaches Numba Philox and the portable functions
from .compile import reads

for _function in (
    reference.period_of,
    reference.window_end,
    reference.window_at,
    reference.next_open,
    reference.available,
    reference.close_of,
    reference.work_until,
    reference.next_tick,
    reference.draw_component,
    reference.recorded_row,
    reference.wait_of,
    reference.duration_of,
    reference.tasks_left,
    reference.eligible,
    reference.selection_word,
    reference.draw_client,
    reference.next_opening,
    reference.start_time_of,
    reference.end_of_task,
):
    register_jitable(_function)

resolve = njit(nogil=True)(reference.resolve)


def make_resolver(plan: Plan) -> Resolver:
    """The compiled loop; Numba compiles for one type of plan, so all its arrays are passed as read-only views."""
    views: dict[str, Any] = {
        name: reads(value) for name, value in plan._asdict().items() if isinstance(value, np.ndarray)
    }
    return reference.GeneratorResolver(plan._replace(**views), resolve)
