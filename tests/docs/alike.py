"""Whether two printed texts say the same: the same words, and numbers as far apart as rounding may take them.

Other CPUs and backends add in another order, so that a loss may differ in its last digit, and a column by a blank.
"""

from __future__ import annotations

import math
import re

NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")
PART = 0.01


def alike(first: str, second: str) -> bool:
    """Words to the letter, numbers to a hundredth of them."""
    words = [" ".join(NUMBER.sub(" # ", text).split()) for text in (first, second)]
    values = [[float(found.replace(",", "")) for found in NUMBER.findall(text)] for text in (first, second)]
    return words[0] == words[1] and all(
        math.isclose(a, b, rel_tol=PART) for a, b in zip(values[0], values[1], strict=True)
    )
