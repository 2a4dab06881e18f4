"""What a record may hold, for tests that try all of it, and lines of usual ones."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st

from tests.lengths import is_long, longer
from toolkit.telemetry.runfolder.codec import encode

# A slow machine is no failure, and neither is bad luck: a long run draws other examples each time.
without_haste = settings(deadline=None, derandomize=not is_long())

# The number is what a test of the whole project can spend on one property.
tries = settings(without_haste, max_examples=longer(25, 60))

# Every character, halves of surrogate pairs included: a file name that is no UTF-8 reaches Python as such.
any_text = st.text(st.characters(exclude_categories=()), max_size=40)
names = st.text(st.characters(exclude_categories=()), max_size=12)


scalars = (
    st.none() | st.booleans() | st.integers() | st.integers(-(2**2000), 2**2000) | st.floats() | any_text
)

values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(names, inner, max_size=5),
    max_leaves=20,
)

records = st.dictionaries(names, values, max_size=12)


def nested(depth, leaf=1, kind=list):
    """Return `leaf` inside of `depth` lists or mappings."""
    value = leaf
    for _ in range(depth):
        value = [value] if kind is list else {"in": value}
    return value


def line(seq, **fields):
    """Return the line of a step record."""
    record = {"event": "step", "time": 1.7e9 + seq, "seq": seq, "session": 1, "global_step": seq}
    return encode({**record, **fields})
