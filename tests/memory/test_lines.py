"""Source lines as short text."""

import pytest

from olla_xla.memory.sources import short_line

pytestmark = pytest.mark.quick


def test_a_notebook_s_temporary_file_is_not_named():
    assert short_line("/tmp/ipykernel_29285/278276808.py:17") == "notebook cell:17"
    assert short_line("/a/b/c/d/e.py:3") == "c/d/e.py:3"
