"""Terms of constant experts and the fused RMSNorm on whole matrices [rows, hidden] of float32. Rules: docs/numerics.md,
"Sums over a row" and the sections after it. Called by check.py and combined.py."""

import numpy as np
from number_formats import F32, from_float32, to_float32


def row_sums(products):
    """[rows, hidden] -> [rows, 1], in 16 partial sums."""
    columns = np.pad(products, ((0, 0), (0, -products.shape[1] % 16))).reshape(len(products), -1, 16)
    sums = np.zeros((len(products), 16), F32)
    for i in range(columns.shape[1]):
        sums = sums + columns[:, i]
    for distance in (8, 4, 2, 1):
        sums = sums[:, :distance] + sums[:, distance:]
    return sums


def constant_term(x, alpha1, alpha2, v):
    d1, d2 = row_sums(alpha1 * x), row_sums(alpha2 * x)
    e1, e2 = (np.exp((d - np.maximum(d1, d2)).astype(np.float64)).astype(F32) for d in (d1, d2))
    return e1 / (e1 + e2) * x + e2 / (e1 + e2) * v


def norm(z, gamma, epsilon, element_type):
    """-> out and y as bits of the type, rstd."""
    rstd = F32(1) / np.sqrt(row_sums(z * z * (F32(1) / F32(z.shape[1]))) + F32(epsilon))
    rounded = to_float32(from_float32(z * rstd, element_type), element_type)
    return from_float32(z, element_type), from_float32(rounded * gamma, element_type), rstd[:, 0]
