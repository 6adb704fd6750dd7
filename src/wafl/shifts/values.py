"""Shift the values of images or vectors: affine maps, Gaussian and shot noise, inversion."""

import math
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from wafl.base.bounds import DATA, Bounds
from wafl.base.options import Box, Range, frozen, maker
from wafl.base.random import Key, normal, uniform
from wafl.shifts.shift import PURPOSE, Draw, Severity, Shift, each_row

FINITE = Range(hint="; 0 leaves it out")
RANGE = "The darkest and the brightest value, both finite; 'data': what the data declare."


@frozen
class Affine(Shift):
    """FedRobust's model of a shift (Reisizadeh et al., NeurIPS 2020): one map ``x -> A x + b`` for all examples.

    ``A = I + severity (contrast (I - 1 1^T / D) + linear G)`` and ``b = severity brightness 1``. The first term changes
    an example's differences from its mean; G has independent normal entries of variance ``1 / D``, drawn from the seed,
    so that ``||G x||`` is about ``||x||``; ``brightness`` is in the units of the data. ``||A - I||`` and ``||b||`` are
    thus proportional to the severity.

    >>> affine(severity=1.0, linear=0.0).apply([[0.0, 1.0]])
    tensor([[0.4500, 0.9500]])
    """

    contrast: Annotated[float, FINITE, "The growth of differences from the mean; negative values shrink them."] = -0.5
    brightness: Annotated[float, FINITE, "The amount added to every value."] = 0.2
    linear: Annotated[float, FINITE, "The size of the random linear map."] = 0.2

    def _label(self, unit: str) -> str:
        contrast, brightness, linear = (self.severity * size for size in (self.contrast, self.brightness, self.linear))
        return f"affine shift, contrast {contrast:+g}, brightness {brightness:+g} ({unit}), linear map {linear:g}"

    def _shifted(self, x: Tensor, seed: int, rows: Tensor) -> Tensor:
        flat = x.flatten(1)
        change = self.contrast * (flat - flat.mean(1, keepdim=True)) + self.brightness
        if self.linear != 0:
            change = change + self.linear * self._mapped(flat, seed)
        return (flat + self.severity * change).view_as(x)

    def _mapped(self, flat: Tensor, seed: int) -> Tensor:
        """Return ``G x``, computed with some rows of G at a time, since a color image's G exceeds the memory."""
        features = flat.shape[1]

        def products(rows: Tensor, key: Key) -> Tensor:
            return flat @ (normal(key, PURPOSE, features) / math.sqrt(features)).to(flat).mT

        return torch.cat(each_row(torch.arange(features, device=flat.device), flat, seed, Draw.AFFINE, products), dim=1)


@frozen
class GaussianNoise(Shift):
    """Independent normal noise on every value: ``x + severity n`` with n standard normal.

    >>> moved = gaussian_noise(severity=0.1).apply(torch.zeros(100, 100))
    >>> round(float(moved.std()), 2)
    0.1
    """

    severity: Annotated[float, Severity(), "The noise's standard deviation, in the units of the data."]

    def _label(self, unit: str) -> str:
        return f"Gaussian noise, std {self.severity:g} ({unit})"

    def _shifted(self, x: Tensor, seed: int, rows: Tensor) -> Tensor:
        flat = x.flatten(1)

        def noisy(chosen: Tensor, key: Key) -> Tensor:
            return flat[chosen] + self.severity * normal(key, PURPOSE, flat.shape[1]).to(flat)

        return torch.cat(each_row(rows, flat, seed, Draw.GAUSSIAN, noisy)).view_as(x)


@frozen
class ShotNoise(Shift):
    """Photon noise: ``v -> severity^2 Poisson(v / severity^2)``, with v in [0, 1] the position in the box.

    The brightest value is ``1 / severity^2`` photons on average and has the standard deviation ``severity``, as a
    fraction of the range ``high - low``; a darker value has ``severity sqrt(v)``, and the darkest has no noise.

    >>> shot_noise(severity=0.5, bounds=(0.0, 1.0)).apply(torch.zeros(1, 3))
    tensor([[0., 0., 0.]])
    """

    severity: Annotated[float, Severity(), "The standard deviation at the brightest value, as a fraction of the range."]
    bounds: Annotated[Bounds, Box(), RANGE] = DATA
    needs_bounds: ClassVar[bool] = True

    def _label(self, unit: str) -> str:
        return f"shot noise, std {self.severity:g} of the range where it is brightest"

    def _shifted(self, x: Tensor, seed: int, rows: Tensor) -> Tensor:
        assert self.box is not None
        low, high = self.box
        flat = x.flatten(1)

        def counted(chosen: Tensor, key: Key) -> Tensor:
            light = (flat[chosen].double() - low).clamp_min(0.0) / (high - low)
            u = uniform(key, PURPOSE, flat.shape[1]) + 2.0**-25  # the middle of its interval, which may start at 0
            return (low + (high - low) * _shot(light, self.severity, u)).to(flat)

        return torch.cat(each_row(rows, flat, seed, Draw.SHOT, counted)).view_as(x)


def _shot(light: Tensor, severity: float, u: Tensor) -> Tensor:
    """Return ``severity^2`` times the u-quantile of ``Poisson(light / severity^2)``.

    Up to 30 photons are counted; beyond that, ``rate + sqrt(rate) z + (z^2 - 1) / 6`` with the normal quantile z
    (Cornish and Fisher's expansion) is within one photon.
    """
    z = torch.special.ndtri(u)
    noisy = light + severity * light.sqrt() * z + severity**2 * (z.square() - 1.0) / 6.0
    dark = light <= 30.0 * severity**2
    if bool(dark.any()):
        rate = light[dark] / max(severity**2, 1e-300)
        noisy[dark] = severity**2 * poisson_quantile(rate, u[dark])
    return noisy


def poisson_quantile(rate: Tensor, u: Tensor) -> Tensor:
    """Return the smallest k with ``P(K <= k) > u`` for K ~ Poisson(rate), by summing probabilities."""
    count = torch.zeros_like(rate)
    probability = torch.exp(-rate)
    total = probability
    k = 0
    while bool((above := u >= total).any()):
        k += 1
        count = count + above
        probability = probability * rate / k
        total = total + probability
    return count


@frozen
class Inversion(Shift):
    """A move of every value toward its negative: ``x -> (1 - severity) x + severity (low + high - x)``, gray at 1/2.

    >>> inversion(severity=0.5, bounds=(0.0, 1.0)).apply([[0.0, 0.25]])
    tensor([[0.5000, 0.5000]])
    """

    severity: Annotated[float, Severity(1), "The share of the negative: 0 is the image, 1 the negative."] = 1.0
    bounds: Annotated[Bounds, Box(), RANGE] = DATA
    needs_bounds: ClassVar[bool] = True

    def _label(self, unit: str) -> str:
        return f"inversion by {100.0 * self.severity:g}%"

    def _shifted(self, x: Tensor, seed: int, rows: Tensor) -> Tensor:
        assert self.box is not None
        return (1.0 - self.severity) * x + self.severity * (sum(self.box) - x)


affine = maker(Affine)
gaussian_noise = maker(GaussianNoise)
shot_noise = maker(ShotNoise)
inversion = maker(Inversion)
