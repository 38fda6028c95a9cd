"""What tells a lowered step from others, and whether it is large."""

import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

from olla_xla.compile import stablehlo
from olla_xla.compile.stablehlo import StableHlo

_PROGRAM = """
import jax, jax.numpy as jnp, hashlib, sys
from olla_xla.compile import stablehlo
from olla_xla.compile.stablehlo import StableHlo
def step(x):
    return jnp.tanh(x) @ x
print(hashlib.sha256(StableHlo(jax.jit(step).lower(jnp.zeros((8, 8)))).bytecode).hexdigest())
"""


def _of(function, *shapes):
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return StableHlo(jax.jit(function).lower(*arguments))


def test_bytecode_tells_programs_apart():
    different = [
        _of(lambda x: jnp.tanh(x), (8, 8)),
        _of(lambda x: jnp.tanh(x), (8, 9)),
        _of(lambda x: jnp.sin(x), (8, 8)),
        _of(lambda x: jnp.tanh(x) * 2, (8, 8)),
        _of(lambda x: jnp.tanh(x) * 3, (8, 8)),
        _of(lambda x: jnp.tanh(x) + jnp.arange(8.0), (8, 8)),
    ]
    assert len({hlo.bytecode for hlo in different}) == len(different)


def test_bytecode_knows_no_lines_of_the_source():
    def first(x):
        return jnp.tanh(x)

    def second(x):
        y = jnp.tanh(x)
        return y

    first.__name__ = second.__name__ = "step"
    assert _of(first, (8, 8)).bytecode == _of(second, (8, 8)).bytecode


def test_bytecode_is_the_same_in_every_process(tmp_path):
    digests = set()
    for lines in (0, 7):
        file = tmp_path / f"program{lines}.py"
        file.write_text("\n" * lines + _PROGRAM)
        run = subprocess.run([sys.executable, file], capture_output=True, text=True, check=True)
        digests.add(run.stdout)
    assert len(digests) == 1 and re.fullmatch("[0-9a-f]{64}\n", digests.pop())


def test_the_module_stays_as_it_was():
    hlo = _of(lambda x: jnp.tanh(x), (8, 8))
    before = hlo.text
    assert hlo.bytecode == hlo.bytecode and hlo.text == before
    assert hlo.name == "jit__lambda"


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (lambda x: x + 1, [(512, 512)]),  # arguments say it
        (lambda x: (x @ x.T).sum(), [(1024, 2)]),  # only what is between them
        (lambda x: jax.lax.scan(lambda c, _: (c, (c @ c.T).sum()), x, None, 3), [(1024, 2)]),
    ],
    ids=["arguments", "values", "values of a loop"],
)
def test_large_types_are_seen_wherever_they_are(function, shapes):
    hlo = _of(function, *shapes)
    assert hlo.mentions_more(2**20 - 1)
    assert not hlo.mentions_more(2**30)


def test_a_complex_number_is_two_numbers():
    assert stablehlo._bytes("tensor<4x2xcomplex<f32>>, tensor<8xf16>", 2**20) == 64 + 16
