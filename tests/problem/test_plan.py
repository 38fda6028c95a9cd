"""Plan files: exact round trips, and one line that says what is wrong with a damaged one."""

import dataclasses
import json
import math

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from olla_xla.errors import InputError, PlanFileError
from olla_xla.problem import plan as plan_file
from olla_xla.problem.options import PlanOptions
from olla_xla.problem.plan import Plan
from olla_xla.problem.plan_parts import PlanStatus, StopReason

pytestmark = pytest.mark.quick

PLAN = Plan(
    module="jit_step",
    fingerprint="00ff",
    target="cpu",
    order={"main": ("p", "fusion.1", "tuple"), "body": ()},
    offsets={"fusion.1{0}": (64, 2**40), "p": (0, 4)},
    xla_bytes=9,
    xla_predicted_bytes=8,
    predicted_bytes=7,
    peak_bytes=6,
    least_peak_bytes=5,
    lower_bound_bytes=4,
    assigned_bytes=None,
    candidates={"xla": (9, 8)},
    aliases={"fusion.1": (((), 0), ((1, 0), 2))},
    clones=(("f.remat", "f", ("p", "q"), (("g", 1),)), ("h.remat", "h", (), ())),
    step_seconds=0.25,
    added_seconds=1e-9,
    moved_bytes=2**50,
    added_moved_bytes=-1,
    seconds=0.1 + 0.2,
    steps=3,
    stopped_by=StopReason.STEP_LIMIT,
    seed=1,
    time_limit=2.5,
    tolerance=1e-3,
)

COUNTS = st.integers(0, 2**62)
NAMES = st.text(min_size=1, max_size=8)
PLANS = st.builds(
    Plan,
    module=NAMES,
    fingerprint=NAMES,
    target=st.sampled_from(["cpu", "cuda"]),
    order=st.dictionaries(NAMES, st.lists(NAMES, max_size=4).map(tuple), max_size=3),
    offsets=st.dictionaries(NAMES, st.tuples(COUNTS, COUNTS), max_size=3),
    aliases=st.dictionaries(
        NAMES,
        st.lists(st.tuples(st.lists(COUNTS, max_size=2).map(tuple), COUNTS), max_size=2).map(tuple),
        max_size=2,
    ),
    candidates=st.dictionaries(NAMES, st.tuples(COUNTS, COUNTS), max_size=2),
    clones=st.lists(
        st.tuples(
            NAMES,
            NAMES,
            st.lists(NAMES, max_size=2).map(tuple),
            st.lists(st.tuples(NAMES, COUNTS), max_size=2).map(tuple),
        ),
        max_size=2,
    ).map(tuple),
    assigned_bytes=st.none() | COUNTS,
    step_limit=st.none() | COUNTS,
    time_limit=st.floats(0.001, math.inf),
    seconds=st.floats(0, 1e9),
    status=st.sampled_from(PlanStatus),
    stopped_by=st.sampled_from(StopReason),
    **{name: COUNTS for name in ("xla_bytes", "xla_predicted_bytes", "predicted_bytes")},
    **{name: COUNTS for name in ("peak_bytes", "least_peak_bytes", "lower_bound_bytes")},
)


@settings(max_examples=30)
@example(dataclasses.replace(PLAN, time_limit=math.inf))
@given(PLANS)
def test_round_trip_is_exact(plan):
    text = plan_file.dumps(plan)
    assert plan_file.loads(text) == plan
    assert plan_file.dumps(plan_file.loads(text)) == text


def test_numbers_of_numpy_are_numbers():
    plan = dataclasses.replace(PLAN, tolerance=np.float64(PLAN.tolerance))
    assert plan_file.dumps(plan) == plan_file.dumps(PLAN)


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.array, jnp.float32])
def test_options_may_be_scalars_of_array_libraries(kind):
    options = PlanOptions(time_limit=kind(2.5), step_limit=np.int64(7), seed=np.uint8(3))
    assert options == PlanOptions(time_limit=2.5, step_limit=7, seed=3)
    assert repr(options) == repr(PlanOptions(time_limit=2.5, step_limit=7, seed=3)), (
        "keys are equal"
    )
    assert PlanOptions(memory_budget=np.int32(5), in_place=np.bool_(False)).budget_bytes == 5
    with pytest.raises(InputError, match="step_limit=7.0 must be an integer"):
        PlanOptions(step_limit=np.float32(7))
    with pytest.raises(InputError, match="time_limit"):
        PlanOptions(time_limit=np.ones(2))


def test_save_and_load(tmp_path):
    path = tmp_path / "plan.json"
    PLAN.save(path)
    PLAN.save(str(path))
    loaded = Plan.load(path)
    assert loaded == PLAN
    assert isinstance(loaded.order["main"], tuple) and isinstance(loaded.offsets["p"], tuple)
    assert (
        loaded.stopped_by is StopReason.STEP_LIMIT
        and '"stopped_by":"step_limit"' in path.read_text()
    )
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"], "nothing temporary is left"


def test_every_field_is_stored_and_required():
    for field in dataclasses.fields(Plan):
        document = json.loads(plan_file.dumps(PLAN))
        del document["plan"][field.name]
        with pytest.raises(PlanFileError, match=f"has no field {field.name}"):
            plan_file.loads(json.dumps(document))


def document_of(**fields):
    return json.dumps({**json.loads(plan_file.dumps(PLAN)), **fields})


def damaged(**fields):
    return document_of(plan={**json.loads(plan_file.dumps(PLAN))["plan"], **fields})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("HloModule jit_step", "is not JSON"),
        (plan_file.dumps(PLAN)[:-40].decode(), "is not JSON"),
        ("[]", "is not a plan file"),
        ('{"format": "other", "version": 1}', "is not a plan file"),
        (document_of(version=99), "version 99"),
        (document_of(version=3), "version 3, but this olla_xla reads 19; plan again"),
        (document_of(plan=None), "contains no plan"),
        (damaged(bogus=1), "unknown field bogus"),
        (damaged(xla_bytes=1.5), r"malformed field .*\$\.xla_bytes"),
        (damaged(xla_bytes=True), r"malformed field .*\$\.xla_bytes"),
        (damaged(target=3), r"malformed field .*\$\.target"),
        (damaged(status="best"), r"malformed field .*\$\.status"),
        (damaged(stopped_by="bound"), r"malformed field .*\$\.stopped_by"),
        (damaged(seconds=None), r"malformed field .*\$\.seconds"),
        (damaged(seconds="long"), r"malformed field .*\$\.seconds"),
        (damaged(order={"main": "p"}), r"malformed field .*\$\.order"),
        (damaged(order=[]), r"malformed field .*\$\.order"),
        (damaged(offsets={"p": [0]}), r"malformed field .*\$\.offsets"),
        (damaged(offsets={"p": [0, "4"]}), r"malformed field .*\$\.offsets"),
        (damaged(aliases={"f": [[0, 1]]}), r"malformed field .*\$\.aliases"),
    ],
)
def test_damaged_files_are_refused_in_one_line(tmp_path, text, says):
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(PlanFileError, match=says) as caught:
        Plan.load(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    assert isinstance(caught.value, InputError), "exit code 2"


def test_unreadable_files(tmp_path):
    with pytest.raises(PlanFileError, match="cannot read"):
        Plan.load(tmp_path / "absent.json")
    with pytest.raises(PlanFileError, match="cannot write"):
        PLAN.save(tmp_path / "no" / "such" / "folder.json")
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PlanFileError, match="not JSON"):
        Plan.load(binary)
    (tmp_path / "folder").mkdir()
    with pytest.raises(PlanFileError, match="cannot write"):
        PLAN.save(tmp_path / "folder")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["binary", "folder"]
