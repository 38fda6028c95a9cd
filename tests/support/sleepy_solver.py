"""A backend that tells of a point and a bound, and then never ends; or ends at once."""

import os
import time

import numpy as np

IGNORES = frozenset()


def solve(model, limits):
    if model.start is None:
        os._exit(3)
    limits.watch(5.0, 2.0)
    limits.points(np.array([1.0]))
    limits.watch(4.0, 1.0)
    time.sleep(600)
