"""Verifies a file: reads it, checks its signature, and proves what it says again."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from torch import nn

from wafl.data.federation import Federation
from wafl.promises.check import Verification, check
from wafl.promises.promise import to_bytes
from wafl.promises.read import read_file
from wafl.promises.sign import is_signed_by
from wafl.results.run import Run
from wafl.tasks.task import Loss


def verify(
    file: str | os.PathLike[str],
    *,
    model: Run | nn.Module | None = None,
    data: Federation | None = None,
    key: str | os.PathLike[str] | None = None,
    loss: Loss | None = None,
) -> Verification:
    """Prove a certificate again, as far as the model and the data at hand allow.

    Args:
        file: what :meth:`Promise.save` wrote, of :func:`wafl.issue` or :func:`wafl.issue_next_client`.
        model: the model that it is about.
        data: clients that it is about, all or some of them, known by their names.
        key: the file of an Ed25519 public key: a file that its owner did not sign, byte by byte, is refused.
        loss: the loss to use instead of the run's own; cross-entropy for a plain model.

    Returns:
        Every line of the certificate, with what was found.
    """
    path = Path(file)
    promise, signature = read_file(path)
    if key is not None and signature is None:
        raise ValueError(f"{path} is not signed: ask who issued it for a signed one, or leave the key out")
    if key is not None and not is_signed_by(to_bytes(promise.content), signature or "", key):
        raise ValueError(f"{path} was not signed with this key, or was changed since: do not rely on it")
    return replace(check(promise, model, data, loss), signed=key is not None)
