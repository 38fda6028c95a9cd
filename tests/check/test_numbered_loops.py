"""Numbers of what loops compute: equal only where the results are, element by element."""

import pytest

from hlo.dumps.read import with_program_order
from hlo.text import from_hlo_text
from tests.check.test_executable_loops import AGAIN, READ, module, reader, results_digest, writer

STATE = "(s32[], f32[4], f32[4], f32[4])"


def loop(
    root="tuple(n, b, a, c)",
    begin="tuple(zero, x, y, z)",
    more="",
    bound=3,
    direction="LT",
    step=1,
    result=1,
    test="compare(i, n)",
):
    """The digest of one element of a loop's state; a, b and c are arrays, i counts from 0."""
    text = f"""HloModule m
runs {{
  s = {STATE} parameter(0)
  i = s32[] get-tuple-element(s), index=0
  a = f32[4] get-tuple-element(s), index=1
  b = f32[4] get-tuple-element(s), index=2
  c = f32[4] get-tuple-element(s), index=3
  one = s32[] constant({step})
  n = s32[] add(i, one)
  {more}
  ROOT t = {STATE} {root}
}}
goes_on {{
  s = {STATE} parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant({bound})
  ROOT t = pred[] {test}, direction={direction}
}}
ENTRY e {{
  x = f32[4] parameter(0)
  y = f32[4] parameter(1)
  z = f32[4] parameter(2)
  zero = s32[] constant(0)
  begun = {STATE} {begin}
  w = {STATE} while(begun), condition=goes_on, body=runs
  ROOT r = f32[4] get-tuple-element(w), index={result}
}}"""
    return results_digest(with_program_order(from_hlo_text(text)))


def plain(result):
    """The digest of an argument, or of what is written of them."""
    text = f"""HloModule m
ENTRY e {{
  x = f32[4] parameter(0)
  y = f32[4] parameter(1)
  z = f32[4] parameter(2)
  ROOT r = f32[4] {result}
}}"""
    return results_digest(with_program_order(from_hlo_text(text)))


SINE = {"root": "tuple(n, d, b, c)", "more": "d = f32[4] sine(a)"}


def test_neither_order_nor_what_else_there_is_leaves_a_trace():
    alone = loop(**SINE)
    assert alone == loop(
        root="tuple(n, c, d, a)", more="d = f32[4] sine(b)", begin="tuple(zero, y, x, z)", result=2
    )
    assert alone == loop(root="tuple(n, d, o, c)", more="d = f32[4] sine(a)\n o = f32[4] cosine(b)")
    assert alone == loop(  # a second copy
        root="tuple(n, d, o, c)",
        more="d = f32[4] sine(a)\n o = f32[4] sine(b)",
        begin="tuple(zero, x, x, z)",
        result=2,
    )


@pytest.mark.parametrize(
    "other",
    [
        {**SINE, "begin": "tuple(zero, y, x, z)"},
        {**SINE, "more": "d = f32[4] cosine(a)"},
        {**SINE, "bound": 4},
        {**SINE, "direction": "LE"},
        {**SINE, "step": 2},
        {**SINE, "more": "d = f32[4] sine(b)"},
    ],
)
def test_another_result_has_another_number(other):
    assert loop(**SINE) != loop(**other)


def test_what_reads_another_element_depends_on_all_its_equations():
    """By way of a second one, too."""
    through = "d = f32[4] add(a, b)\n o = f32[4] negate(c)\n u = f32[4] {}(c)"
    root = "tuple(n, d, u, o)"
    one, other = (loop(root=root, more=through.format(f)) for f in ("sine", "cosine"))
    assert one != other
    deeper = "d = f32[4] add(a, b)\n u = f32[4] sine(c)\n o = f32[4] {}(c)"
    one, other = (loop(root=root, more=deeper.format(f)) for f in ("negate", "abs"))
    assert one != other
    deeper = "d = f32[4] sine(a)\n u = f32[4] sine(c)\n o = f32[4] {}(c)"
    one, other = (loop(root=root, more=deeper.format(f)) for f in ("negate", "abs"))
    assert one == other


def test_where_an_element_begins_is_part_of_it():
    """Of two that change alike."""
    both = {
        "root": "tuple(n, d, o, u)",
        "more": "d = f32[4] sine(a)\n o = f32[4] sine(b)\n u = f32[4] subtract(a, b)",
        "result": 3,
    }
    assert loop(**both) != loop(**both, begin="tuple(zero, y, x, z)")
    assert loop(**both) != loop(**both, begin="tuple(zero, x, x, z)")


def test_what_no_iteration_changes_is_what_it_was():
    assert loop(root="tuple(n, a, b, c)", result=2) == plain("copy(y)") != plain("copy(x)")
    handed = {"root": "tuple(n, a, a, c)", "result": 2}
    assert loop(**handed, begin="tuple(zero, x, x, z)") == plain("copy(x)")
    assert loop(**handed) == plain("copy(x)") != loop(**handed, bound=0) == plain("copy(y)")
    for bound in (0, 1, 2, 3):
        changing = {"root": "tuple(n, b, a, c)", "bound": bound}  # they change places
        assert loop(**changing) == plain("copy(y)" if bound % 2 else "copy(x)")
        assert loop(**changing, result=2) == plain("copy(x)" if bound % 2 else "copy(y)")


# A scan residual's slices, and what its loop wrote.


def test_a_loop_that_goes_on_longer_writes_the_last_slice_twice():
    """The fourth of its iterations writes over what the third one wrote: XLA moves the index."""
    found = []
    for direction in ("LT", "LE"):
        before, again = writer(), writer(second=False)
        before, again = (
            text.replace("compare(i, n), direction=LT", f"compare(i, n), direction={direction}")
            for text in (before, again)
        )
        found.append(results_digest(module(before, reader(READ))))
        assert found[-1] == results_digest(module(again, reader(AGAIN, second=False), second=False))
    assert found[0] != found[1]
