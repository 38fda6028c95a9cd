"""Which files are the user's own."""

import sysconfig

import pytest

import olla_xla
from olla_xla.memory.analysis.origins import is_users_file

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    ("file", "own"),
    [
        ("/home/me/train.py", True),
        ("/opt/env/lib/python3.12/site-packages/flax/linen/module.py", False),
        ("/usr/lib/python3/dist-packages/numpy/core.py", False),
        ("<frozen runpy>", False),
        ("-", False),
        ("/src/jax/jax/_src/lax/lax.py", False),
        (f"{sysconfig.get_paths()['stdlib']}/functools.py", False),
        (olla_xla.__file__, False),
    ],
)
def test_files(file, own):
    assert is_users_file(file) is own
