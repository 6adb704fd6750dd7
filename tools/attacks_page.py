"""``python -m tools.attacks_page`` writes ``docs/attacks.md`` and ``attacks.json`` from the listed attacks and shifts.

A test fails if they are not up to date.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from tools.methods_page import option_as_json, summary_of

from wafl.attacks import ATTACKS, Attack
from wafl.base.options import Option
from wafl.config.known import default_of
from wafl.shifts import SHIFTS

PAGE = Path(__file__).parents[1] / "docs" / "attacks.md"
LIST = Path(__file__).parents[1] / "src" / "wafl" / "config" / "attacks.json"
HEAD = """\
# Attacks and shifts

This page shows how to test a model on changed data. An attack uses the model to choose the change, and a shift does
not. Pass an attack or a shift to `wafl.evaluate`, or name it in the command `wafl evaluate`:

```python
import wafl

clients = wafl.load_dataset("digits").partition(num_clients=10, labels_per_client=3, seed=0)
run = wafl.fit(wafl.models.mlr(clients), clients, wafl.FedAvg(), rounds=3, local_steps=2, learning_rate=0.1)
for attack in (wafl.PGD(epsilon=0.1), wafl.shifts.rotation(severity=0.2)):
    print(wafl.evaluate(run, clients, attack=attack))
```

The lists below show the options that an experiment file (`[attack]`) and the command (`wafl evaluate --attack KIND`)
can set, with their defaults. In Python, you must pass the size, and there are more options ([api.md](api.md)).
[extending.md](extending.md#an-attack) shows how to add your own attack.

`tools/attacks_page.py` writes this page from the lists in `wafl.attacks` and `wafl.shifts`.
"""
SHIFTED = """\
An experiment file can apply any of these shifts except `label_shift` to clients that take no part in training
(`data.unseen_shift`).
"""


def page() -> str:
    """Return the text of ``docs/attacks.md``."""
    return "\n".join([HEAD, "## Attacks\n", _listed(ATTACKS), "## Shifts\n", SHIFTED, _listed(SHIFTS)])


def _listed(kinds: Mapping[str, type[Attack]]) -> str:
    return "".join(f"- `{name}`: {summary_of(kind)} {_options(kind)}\n" for name, kind in kinds.items())


def _options(kind: type[Attack]) -> str:
    """Return the size of an attack with its purpose, and its other options."""
    size, *others = kind.settable().values()
    words = [f"Its size, {_option(size)}, is {size.doc[:1].lower()}{size.doc[1:]}"]
    return " ".join([*words, *([f"Options: {', '.join(map(_option, others))}."] if others else [])])


def _option(option: Option) -> str:
    return f"`{option.name}`" + ("" if option.default is None else f" ({default_of(option)})")


def attacks_list() -> str:
    """Return the text of ``attacks.json``, which the command reads instead of the attacks themselves."""
    listed = [
        {
            "name": name,
            "summary": summary_of(kind),
            "options": [option_as_json(option) for option in kind.settable().values()],
            **({} if kind.package is None else {"package": kind.package}),
        }
        for name, kind in {**ATTACKS, **SHIFTS}.items()
    ]
    return "[\n" + ",\n".join(map(json.dumps, listed)) + "\n]\n"


if __name__ == "__main__":
    PAGE.write_text(page())
    LIST.write_text(attacks_list())
