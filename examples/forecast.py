"""The future of a series in ten lines: ``pip install "gigagp[plot]"``, then ``python examples/forecast.py``."""

import numpy as np

import gigagp

months = np.arange("2020-01", "2024-01", dtype="datetime64[M]")
season = np.sin(2 * np.pi * np.arange(48) / 12)
visits = np.random.default_rng(0).poisson(200 * np.exp(0.01 * np.arange(48) + 0.3 * season))

found = gigagp.forecast(visits, steps=12, time=months)
print(found)
for time, mean, (lower, upper) in zip(found.times, found.mean, found.interval(0.95), strict=True):
    print(f"{time.astype('datetime64[M]')}: {mean:.0f} ({lower:.0f} to {upper:.0f})")
found.plot("visits.png")
