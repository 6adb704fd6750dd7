"""Conformal prediction by its definitions: loops over clients, examples and thresholds, in fractions."""

import math
from fractions import Fraction

import numpy as np


def split_conformal(scores, coverage):
    """Return the ceil(coverage (n + 1))-th smallest score, as in every textbook; coverage is text."""
    rank = math.ceil(Fraction(coverage) * (len(scores) + 1))
    return sorted(scores)[rank - 1] if rank <= len(scores) else math.inf


def missed(scores, threshold):
    """Return the share of scores strictly above a threshold; a client without scores misses all."""
    return Fraction(sum(score > threshold for score in scores), len(scores)) if len(scores) else Fraction(1)


def example_threshold(clients, coverage, grid=None):
    """Return the smallest t with (sum_k m_k(t) + 1) / (K + 1) <= 1 - coverage."""
    candidates = sorted({score for scores in clients for score in scores} if grid is None else grid)
    for t in candidates:
        if (sum(missed(scores, t) for scores in clients) + 1) / (len(clients) + 1) <= 1 - Fraction(coverage):
            return t
    return math.inf


def client_threshold(clients, coverage, confidence, grid=None):
    """Return the ceil(confidence (K + 1))-th smallest of each client's smallest t with m_k(t) <= 1 - coverage."""
    each = []
    for scores in clients:
        candidates = sorted(scores if grid is None else grid)
        each.append(next((t for t in candidates if missed(scores, t) <= 1 - Fraction(coverage)), math.inf))
    return sorted(each)[math.ceil(Fraction(confidence) * (len(clients) + 1)) - 1]


def class_scores(name, outputs, penalty=0.01, free=5):
    """Return the score of every class of one example, one class after another."""
    outputs = np.asarray(outputs, dtype=float)
    p = np.exp(outputs - outputs.max())
    p /= p.sum()
    result = []
    for label in range(len(outputs)):
        others = [outputs[j] for j in range(len(outputs)) if j != label]
        before = [j for j in range(len(outputs)) if p[j] >= p[label]]
        mass = sum(p[j] for j in before)
        result.append(
            {
                "margin": max(others) - outputs[label],
                "probability": 1.0 - p[label],
                "aps": mass,
                "raps": mass + penalty * max(len(before) - free, 0),
            }[name]
        )
    return result
