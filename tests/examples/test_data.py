"""The data of the trainers: what is held out stays apart, and a batch depends on its step alone."""

import numpy as np
import pytest

from examples import data


def test_digits():
    train, test = data.digits()
    assert train["inputs"].shape == (1437, 8, 8, 1) and test["inputs"].shape == (360, 8, 8, 1)
    assert {x.dtype.name for part in (train, test) for x in part.values()} == {"float32", "int32"}
    assert train["inputs"].min() == 0 and train["inputs"].max() == 1
    assert set(test["labels"].tolist()) == set(range(10))
    images = [{image.tobytes() for image in part["inputs"]} for part in (train, test)]
    assert not images[0] & images[1]


def test_text():
    train, test = (part.tobytes().decode() for part in data.text())
    assert 0.05 < len(test) / (len(train) + len(test)) < 0.2
    assert not set(train.split("\n\n")) & set(test.split("\n\n"))


def test_an_epoch_takes_each_example_once():
    numbers = {"inputs": np.arange(10), "labels": np.arange(10)}
    batch = data.shuffled(numbers, 5, seed=1)
    epochs = [np.concatenate([batch(i)["labels"] for i in pair]) for pair in ((0, 1), (2, 3))]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert epochs[0].tolist() != epochs[1].tolist()
    again = data.shuffled(numbers, 5, seed=1)(3)["labels"]
    assert again.tolist() == epochs[1][5:].tolist()
    assert data.shuffled(numbers, 5, seed=2)(3)["labels"].tolist() != again.tolist()


@pytest.mark.parametrize("batch_size", [0, 11])
def test_a_batch_is_part_of_an_epoch(batch_size):
    with pytest.raises(ValueError, match=f"from 1 to 10, the examples, got {batch_size}"):
        data.shuffled({"inputs": np.arange(10), "labels": np.arange(10)}, batch_size, 0)


def test_windows():
    text = np.arange(11, dtype=np.uint8)
    held_out = data.all_windows(text, 3)
    assert held_out["inputs"].tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert held_out["labels"].tolist() == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    assert data.all_windows(text, 10)["labels"][0, -1] == 10
    batch = data.random_windows(text, 200, 3, seed=0)
    inputs, labels = batch(7)["inputs"], batch(7)["labels"]
    assert inputs.dtype == np.int32 and (labels == inputs + 1).all()
    assert set(inputs[:, 0].tolist()) == set(range(8))
    assert not (batch(8)["inputs"] == inputs).all()


@pytest.mark.parametrize("length", [0, 11])
def test_a_window_fits_the_text(length):
    with pytest.raises(ValueError, match=f"of 1 to 10 bytes, got {length}"):
        data.all_windows(np.arange(11, dtype=np.uint8), length)
