"""Shows how many digits `forget` leaves in float64 and in float32.

python examples/forget_precision.py

A learner learns 10,000 samples and forgets a share of them. Another learns only the remaining
samples, in float64. The script prints the relative difference of their predictions.
"""

import warnings

import numpy as np

import retarget as rt

SAMPLES, FEATURES, GAMMA = 10_000, 64, 1.0
rng = np.random.default_rng(0)
X = rng.normal(size=(SAMPLES, FEATURES))
Y = X @ rng.normal(size=(FEATURES, 3)) + 0.1 * rng.normal(size=(SAMPLES, 3))
queries = rng.normal(size=(1000, FEATURES))

print("forgotten   left   float64   float32")
for share in (0.9, 0.99, 0.999):
    kept = round((1 - share) * SAMPLES)
    left, gone = slice(0, kept), slice(kept, None)
    never = rt.StreamingRidge(rt.Linear(), gamma=GAMMA).learn(X[left], Y[left]).predict(queries)
    errors = []
    for precision in ("float64", "float32"):
        learner = rt.StreamingRidge(rt.Linear(), gamma=GAMMA, precision=precision)
        learner.learn(X, Y).forget(X[gone], Y[gone])
        with warnings.catch_warnings():  # which says how many digits are left
            warnings.simplefilter("ignore", rt.errors.PrecisionWarning)
            errors.append(np.linalg.norm(learner.predict(queries) - never) / np.linalg.norm(never))
    print(f"{share:9.1%} {kept:6,}   {errors[0]:7.0e}   {errors[1]:7.0e}")
