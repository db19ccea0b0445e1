"""Change files by chance: for tests of what is made of them."""

import copy

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

often = settings(deadline=None, suppress_health_check=list(HealthCheck), database=None)

odd = st.sampled_from(
    [
        None,
        True,
        -1,
        0,
        3.5,
        1e300,
        10**30,
        float("nan"),
        float("inf"),
        "",
        "x",
        "\ud800",
        [],
        [[]],
        {},
        [None],
    ]
)


def places(data, path=()):
    """The paths of all values in JSON data."""
    yield path
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        yield from places(value, (*path, key))


def changed(draw, data):
    """JSON data with one value replaced, removed or doubled."""
    data = copy.deepcopy(data)
    *path, last = draw(st.sampled_from([place for place in places(data) if place]))
    inside = data
    for key in path:
        inside = inside[key]
    what = draw(st.sampled_from(["replace", "replace", "remove", "double"]))
    if what == "replace":
        inside[last] = draw(odd)
    elif what == "remove":
        del inside[last]
    else:
        inside[last] = [inside[last], inside[last]]
    return data


def damage(draw, path):
    """Change the bytes of a file."""
    content = path.read_bytes()
    at = draw(st.integers(0, max(0, len(content) - 1)))
    kind = draw(st.sampled_from(["cut", "flip", "flip", "flip", "zero", "empty", "noise", "gone", "folder"]))
    if kind in ("gone", "folder"):
        path.unlink()
        if kind == "folder":
            path.mkdir()
        return
    byte = draw(st.integers(1, 255))
    path.write_bytes(
        {
            "cut": content[:at],
            "flip": content[:at] + bytes([content[at] ^ byte]) + content[at + 1 :] if content else b"x",
            "zero": content[:at] + bytes(len(content) - at),
            "empty": b"",
            "noise": draw(st.binary(max_size=200)),
        }[kind]
    )


def one_line(error):
    assert "\n" not in " ".join(str(error).split()) and len(str(error)) < 1500
    return True
