"""Topologies of TPUs that are not here, and the environment in which libtpu looks for none."""

import os
from pathlib import Path

import pytest

from olla_xla.errors import InputError
from olla_xla.targets import tpu
from olla_xla.targets.tpu import CHIPS, prepare_libtpu

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    ("name", "count", "topology"),
    [("v5e", 4, "2x2"), ("v5e", 8, "2x4"), ("v5p", 4, "2x2x1"), ("v5p", 16, "2x2x4"),
     ("tpu7x", 1, "1x1x1"), ("tpu7x", 8, "2x2x1")],
)  # fmt: skip
def test_topologies_by_their_names(name, count, topology):
    assert tpu._usual(CHIPS[name], count) == topology


def test_other_numbers_of_devices_need_a_topology():
    with pytest.raises(InputError, match=r"devices=6 is not a power of two.*such as 2x2x2 for 8"):
        tpu._usual(CHIPS["v5p"], 6)


@pytest.mark.parametrize("text", ["2", "0x2", "2x", "2x2x2x2", "a"])
def test_what_is_no_topology(text):
    assert not tpu._TOPOLOGY.fullmatch(text)


def test_memory_is_in_bytes():
    chip = CHIPS["v5e"]
    assert (chip.memory_bytes, chip.bytes_per_second) == (63 * 2**28, 819_000_000_000)


@pytest.fixture
def machine(monkeypatch):
    """A machine with these files under /dev, and none of our variables set."""
    for name in tpu._ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)

    def of(**files):
        monkeypatch.setattr(Path, "glob", lambda self, pattern: iter(files.get(self.name, ())))

    yield of
    for name in tpu._ENVIRONMENT:  # what the test has set; what was there comes back
        os.environ.pop(name, None)


def test_without_a_tpu_none_is_looked_for(machine, monkeypatch):
    monkeypatch.setenv("TPU_WORKER_ID", "7")
    machine()
    prepare_libtpu()
    assert os.environ["TPU_SKIP_MDS_QUERY"] == "1"
    assert os.environ["TPU_WORKER_ID"] == "7", "what is set stays"


@pytest.mark.parametrize("folder", ["dev", "vfio"])
def test_a_tpu_that_is_here_is_left_alone(machine, folder):
    machine(**{folder: ["accel0"]})
    prepare_libtpu()
    assert not {*tpu._ENVIRONMENT} & {*os.environ}
