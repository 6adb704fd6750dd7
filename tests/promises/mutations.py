"""Mutations of a certificate, each of which a checker must notice."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import wafl
from wafl.promises.promise import whole_file

Content = dict[str, Any]


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places of all values, tables and lists."""
    if path:
        yield path
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield from leaves(value[key], (*path, key))


def mutations(content: Content, path: tuple[Any, ...]) -> Iterator[tuple[str, Content]]:
    """Every way in which one leaf is changed."""
    *way, last = path

    def changed(action: str, value: Any = None) -> tuple[str, Content]:
        other = copy.deepcopy(content)
        index: Any = other
        for key in way:
            index = index[key]
        if action == "dropped":
            del index[last]
        elif action == "doubled":
            index.append(copy.deepcopy(index[last]))
        elif action == "renamed":
            index[f"{last}s"] = index.pop(last)
        else:
            index[last] = value
        return action, other

    value: Any = content
    for key in path:
        value = value[key]
    yield changed("dropped")
    if isinstance(value, dict):
        yield changed("reordered", dict(reversed(value.items())))
    yield changed("nothing", None) if value is not None else changed("something", 1.0)
    yield changed("doubled" if isinstance(last, int) else "renamed")
    if isinstance(value, float):
        for factor in (0.0, 0.5, 1.0 - 1e-6, 1.0 + 1e-6, 2.0, 100.0, -1.0, 1e60):
            yield changed(f"times {factor:g}", value * factor)
        for other in (5e-324, 1e-101, 1.0 - 2.0**-53, 1e50, str(value), round(value), [value]):
            yield changed(f"{other!r}", other)
    elif isinstance(value, int):
        for other in (value - 1, value + 1, 100 * value, -value, 10**299, float(value), True, str(value)):
            yield changed(f"{other!r}", other)
    elif isinstance(value, str):
        words = {"loss", "error", "l1", "l2", "l_inf", "train", "test", "client 0", "client 1", "It is safe.", ""}
        for other in sorted(words - {value}):
            yield changed(f"{other!r}", other)
        yield changed("a space", f"{value} ")
        yield changed("capitals", value.swapcase())
        yield changed("one letter", ("0" if value[:1] != "0" else "1") + value[1:])


GRID = np.stack(np.meshgrid(*[np.linspace(-6.0, 6.0, 81)] * 2), axis=-1).reshape(-1, 2)


def grid_losses(
    module: nn.Module, metric: str, x: np.ndarray, y: np.ndarray, offset: float = 0.0, soft: float = 1.0
) -> np.ndarray:
    """The loss of every example after every move of the grid, or whether it is an error."""
    moved = torch.from_numpy((x[:, None] + GRID).reshape(-1, 2))
    with torch.no_grad():
        outputs = module(moved).numpy().reshape(len(x), len(GRID), 3)
    label_output = np.take_along_axis(outputs, y[:, None, None], -1)[..., 0]
    if metric == "loss":
        leads = outputs - label_output[..., None] + offset * (np.arange(3) != y[:, None, None])
        return soft * np.log(np.exp(leads / soft).sum(-1))
    outputs[np.arange(len(y)), :, y] = -np.inf
    return (outputs.max(-1) >= label_output).astype(float)


def priced(claim: Content, losses: np.ndarray, gamma: float) -> np.ndarray:
    """What each example gains at most by a move of the grid, at this price."""
    order = {"l1": 1, "l2": 2, "l_inf": np.inf}[claim["norm"]]
    return (losses - gamma * np.linalg.norm(GRID, ord=order, axis=1) ** claim["power"]).max(1)


def swaps(content: Content) -> Iterator[tuple[tuple[Any, ...], str, Content]]:
    """Changes of several leaves at once: entries of a list, or one field of them, change places; no proof is left."""
    for path in leaves(content):
        value: Any = content
        for key in path:
            value = value[key]
        if not isinstance(value, list) or len(value) < 2:
            continue
        for name in ("", *(value[0] if isinstance(value[0], dict) else ())):
            other = copy.deepcopy(content)
            entries: Any = other
            for key in path:
                entries = entries[key]
            first, second = entries[:2] if name else (entries, entries)
            left, right = (name, name) if name else (0, 1)
            first[left], second[right] = second[right], first[left]
            if other != content:
                yield path, f"swapped {name}", other
    other = copy.deepcopy(content)
    other.update(attested="unknown", witnesses=[], labels=None)
    for row in other["claim"]["rows"]:
        row["value"] = 1e-9
    yield ("attested",), "no proof", other


def forgeries(content: Content, count: int = 100) -> list[tuple[tuple[Any, ...], str, Content]]:
    """At least ``least`` forgeries: one of every leaf, all swaps, and more that are drawn."""
    draw, rest = random.Random(0), list[tuple[tuple[Any, ...], str, Content]]()
    chosen = list(swaps(content))
    for path in leaves(content):
        changes = [(path, *change) for change in mutations(content, path)]
        chosen.append(changes.pop(draw.randrange(len(changes))))
        rest += changes
    return chosen + draw.sample(rest, max(count - len(chosen), 0))


def check_mutations(
    content: Content, share: float, folder: Path, verify: Callable[[Path], Any], untrue: Callable[[Content], str | None]
) -> None:
    """Make a share of all changes of single leaves."""
    draw = random.Random(0)
    every = ((path, *change) for path in leaves(content) for change in mutations(content, path))
    accepted, refused = check_forgeries(
        content, (each for each in every if draw.random() <= share), folder, verify, untrue
    )
    assert refused > 10 * share
    assert accepted > 0 or share < 1.0


def check_forgeries(
    content: Content,
    changed: Iterable[tuple[tuple[Any, ...], str, Content]],
    folder: Path,
    verify: Callable[[Path], Any],
    untrue: Callable[[Content], str | None],
) -> tuple[int, int]:
    """Check that what is recomputed is true, that nothing is without model and data, and that untrue estimates fail.

    Return how many changes are accepted, as recomputed or as estimates, and how many files are not read.
    """
    assert untrue(content) is None, "the file as it was issued"
    file, accepted, refused = folder / "certificate.json", 0, 0
    for path, name, other in changed:
        try:
            file.write_bytes(whole_file(other, None))
            checked, without = verify(file), wafl.verify(file)
        except ValueError:
            refused += 1
            continue
        where = f"{'.'.join(map(str, path))} {name}"
        assert (without.recomputed, without.share) == (False, 0.0), where
        estimate = other.get("attested") is not None
        assert not (checked.recomputed and estimate), where
        if checked.recomputed or (checked.ok and estimate):
            accepted += 1
            assert untrue(other) is None, where
        assert checked.recomputed or not checked.ok or path[0] == "issued" or checked.share < 1.0, where
        if not checked.ok:
            assert {checked.verdict_of(client) for client in checked.clients} == {"WRONG"}, where
    return accepted, refused
