"""Converters: traces that others recorded, in their formats, as a `Trace` or an `ArrivalLog`.

Pickles are read by an unpickler that admits builtin containers, strings and numbers, and nothing that could run code.
"""

from .._delays.fit import Fit, fit
from ._devices import load_pickle
from ._fedscale import from_fedscale
from ._flash import from_flash
from ._rounds import from_delay_matrix, from_gradient_ages

__all__ = ["Fit", "fit", "from_delay_matrix", "from_fedscale", "from_flash", "from_gradient_ages", "load_pickle"]
