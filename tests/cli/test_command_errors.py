"""What commands object to before they do any work."""

import pytest
from absl import flags

from olla_xla.cli.commands import check
from olla_xla.errors import InputError

pytestmark = pytest.mark.quick


def parsed(command, *arguments):
    values = flags.FlagValues()
    command.define_flags(values)
    values(["made", *arguments])
    return values


@pytest.mark.parametrize(
    ("text", "share"), [("1%", 0.01), ("0.01", 0.01), ("0%", 0.0), ("99.9%", 0.999), ("0", 0.0)]
)
def test_tolerances(text, share):
    assert check._share(text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["100%", "1", "-1%", "much", "", "%", "nan"])
def test_what_is_no_tolerance(text):
    with pytest.raises(InputError, match="--tolerance"):
        check._share(text)


def test_a_baseline_is_needed(tmp_path):
    with pytest.raises(InputError, match="--baseline=FILE"):
        check.run(parsed(check, "--model=mlp"))
    path = tmp_path / "x.json"
    path.write_text("HloModule x")
    with pytest.raises(InputError, match="neither a plan file nor an analysis file"):
        check.run(parsed(check, "--model=mlp", f"--baseline={path}"))
