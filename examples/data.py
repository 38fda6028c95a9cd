"""Data that installed packages ship, with a part held out: nothing is downloaded."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

Arrays = dict[str, np.ndarray]
"""`inputs` and `labels`, as a batch of the zoo has them; the first axis counts the examples."""

SPLIT_SEED = 0
"""Seed of what is held out, the same whatever the seed of the training."""

HELD_OUT_DIGITS = 360
"""Of the 1,797 digits."""

IMAGE_SIZE = 8
NUM_CLASSES = 10
NUM_BYTES = 256


class Parts(NamedTuple):
    """What is trained on and what is held out."""

    train: Arrays
    test: Arrays


@functools.cache
def digits() -> Parts:
    """The 1,797 handwritten digits of scikit-learn, 1,437 to train on and 360 held out.

    The inputs are float32 `[n, 8, 8, 1]` in [0, 1], the labels int32 `[n]`.
    """
    from sklearn.datasets import load_digits  # loads most of scikit-learn

    images, labels = load_digits(return_X_y=True)
    inputs = np.asarray(images, np.float32).reshape(-1, IMAGE_SIZE, IMAGE_SIZE, 1) / 16
    labels = np.asarray(labels, np.int32)
    order = np.random.default_rng(SPLIT_SEED).permutation(len(labels))
    test, train = np.split(order, [HELD_OUT_DIGITS])
    return Parts(*({"inputs": inputs[part], "labels": labels[part]} for part in (train, test)))


class Text(NamedTuple):
    """Bytes to train on and bytes held out, each uint8 `[n]`."""

    train: np.ndarray
    test: np.ndarray


@functools.cache
def text() -> Text:
    """Python's help topics, which come with it: 0.4 MB, of which a tenth is held out.

    Topics quote one another: of a repeated paragraph one copy is kept, and whole paragraphs are
    held out. The text, hence every loss, depends on the version of Python.
    """
    from pydoc_data.topics import topics

    repeated = [p for name in sorted(topics) for p in topics[name].split("\n\n") if p.strip()]
    paragraphs = list(dict.fromkeys(repeated))
    held_out = np.random.default_rng(SPLIT_SEED).permutation(len(paragraphs))
    chosen = set(held_out[: len(paragraphs) // 10].tolist())

    def joined(test: bool) -> np.ndarray:
        kept = [p for i, p in enumerate(paragraphs) if (i in chosen) == test]
        return np.frombuffer("\n\n".join(kept).encode(), np.uint8)

    return Text(joined(False), joined(True))


def shuffled(examples: Arrays, batch_size: int, seed: int) -> Callable[[int], Arrays]:
    """Returns `step -> batch`: each epoch takes the examples once, in an order of its own.

    What is left of an epoch and fills no batch is passed over. A batch depends on the seed and
    the step alone, so that a resumed run reads what an uninterrupted one does.
    """
    count = len(examples["labels"])
    if not 1 <= batch_size <= count:
        raise ValueError(f"batch_size must be from 1 to {count}, the examples, got {batch_size}")

    def batch(step: int) -> Arrays:
        epoch, index = divmod(step, count // batch_size)
        order = np.random.default_rng((seed, epoch)).permutation(count)
        chosen = order[index * batch_size : (index + 1) * batch_size]
        return {name: array[chosen] for name, array in examples.items()}

    return batch


def windows(text: np.ndarray, starts: np.ndarray, length: int) -> Arrays:
    """The bytes after each of `starts`, int32 `[starts, length]`; labels are the next bytes."""
    rows = text[starts[:, None] + np.arange(length + 1)].astype(np.int32)
    return {"inputs": rows[:, :-1], "labels": rows[:, 1:]}


def random_windows(
    text: np.ndarray, batch_size: int, length: int, seed: int
) -> Callable[[int], Arrays]:
    """Returns `step -> batch` of windows anywhere in `text`; see `windows` and `shuffled`."""
    _check_length(text, length)

    def batch(step: int) -> Arrays:
        starts = np.random.default_rng((seed, step)).integers(len(text) - length, size=batch_size)
        return windows(text, starts, length)

    return batch


def all_windows(text: np.ndarray, length: int) -> Arrays:
    """The windows of `text` one after the other; what is left at its end is passed over."""
    _check_length(text, length)
    return windows(text, np.arange(0, len(text) - length, length), length)


def _check_length(text: np.ndarray, length: int) -> None:
    if not 1 <= length < len(text):
        raise ValueError(f"a window must be of 1 to {len(text) - 1} bytes, got {length}")
