"""How good is a map where nobody has measured? Whole blocks of places are left out, and drawn.

pip install "gigagp[geo,plot]"
python examples/krige_blocks.py
"""

import numpy as np
from sklearn.model_selection import KFold, cross_val_score

from gigagp.geo import BlockKFold, Kriging

source = np.random.default_rng(0)
places = source.uniform(0, 100, (120, 2))
level = np.sin(places[:, 0] / 12) + np.cos(places[:, 1] / 12) + 0.1 * source.normal(size=120)

found = Kriging().fit(places, level).cross_validate(BlockKFold(5, block_size=25.0))
print(found)
found.plot("folds.png")
for cv in (KFold(5, shuffle=True, random_state=0), BlockKFold(5, block_size=25.0)):
    print(type(cv).__name__, cross_val_score(Kriging(), places, level, cv=cv, scoring="r2").mean().round(3))
