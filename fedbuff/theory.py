"""The convergence theorem of Toghani and Uribe for FedBuff: what it demands, what it promises, and what happens.

>>> import fedbuff as fb
>>> fb.theory.min_server_steps(L=0.5, Q=2, tau=3)
46080
"""

from __future__ import annotations

from ._problems.constants import Constants, Tag, Value
from ._theory.plan import Plan, plan
from ._theory.rate import Rate, rate
from ._theory.theorem import (
    TABLE_1,
    Analysis,
    Bound,
    Condition,
    OutsideTheorem,
    RateTerm,
    StepSizes,
    bound,
    conditions,
    min_server_steps,
    server_steps_for,
    stationary_gradient,
    step_sizes,
)
from ._theory.verify import Verification, verify

__all__ = [
    "TABLE_1",
    "Analysis",
    "Bound",
    "Condition",
    "Constants",
    "OutsideTheorem",
    "Plan",
    "Rate",
    "RateTerm",
    "StepSizes",
    "Tag",
    "Value",
    "Verification",
    "bound",
    "conditions",
    "min_server_steps",
    "plan",
    "rate",
    "server_steps_for",
    "stationary_gradient",
    "step_sizes",
    "verify",
]
