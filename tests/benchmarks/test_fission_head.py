"""A head of a large vocabulary: bytes by target, errors on this CPU."""

from benchmarks.__main__ import main

SIZES = ["--tokens=256", "--width=16", "--words=2048", "--pieces=4,16", "--format=markdown"]


def rows(capsys, *options):
    assert main(["benchmarks", "fission_head", *SIZES, *options]) == 0
    lines = [line.strip("|").split("|") for line in capsys.readouterr().out.splitlines()]
    table = [[cell.strip() for cell in line] for line in lines if len(line) == 3]
    return {name: dict(zip(table[0][1:], cells, strict=True)) for name, *cells in table}


def test_bytes_fall_with_the_pieces(capsys):
    found = rows(capsys)
    whole = float(found["unchanged"]["4"])
    for name in ("fission of the gradient", "fission of the loss", "by hand"):
        assert float(found[name]["16"]) < float(found[name]["4"]) < whole


def test_errors_are_no_larger_than_twice_those_of_jit(capsys):
    found = rows(capsys, "--errors", "--dtype=bfloat16")
    own = map(float, found["unchanged"]["4"].split(", "))
    ours = map(float, found["fission of the gradient"]["16"].split(", "))
    assert all(mine <= 2 * jit for mine, jit in zip(ours, own, strict=True))


def test_what_the_pieces_do_not_divide_is_misuse(capsys):
    assert main(["benchmarks", "fission_head", "--pieces=3"]) == 2
    assert "--pieces: '3'" in capsys.readouterr().err
