"""Garbage collection: off as long as anybody holds it off, and never longer."""

import gc
import os

import pytest

from hlo.gc_pause import hold, release, without_collection

pytestmark = pytest.mark.quick


def test_it_is_off_inside_and_on_again_after_an_error():
    assert gc.isenabled()
    with pytest.raises(ValueError), without_collection():
        with without_collection():
            assert not gc.isenabled()
        assert not gc.isenabled()
        raise ValueError
    assert gc.isenabled()


def test_a_child_forked_inside_collects():
    hold()
    try:
        child = os.fork()
        if not child:
            os._exit(0 if gc.isenabled() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert not gc.isenabled()
    finally:
        release()
    assert gc.isenabled()
