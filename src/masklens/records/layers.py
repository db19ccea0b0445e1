"""The names of layers, which people read instead of the numbers of sites."""

from __future__ import annotations

import re
from collections.abc import Sequence
from operator import index
from typing import Any

from ..errors import SiteError


def site_name(site: int) -> str:
    """The name of a site: "words" (site 0, before positions are added), "embeddings" (site 1, the input of
    the first block), "block k" (site k+1, the output of block k)."""
    return ("words", "embeddings")[site] if site < 2 else f"block {site - 1}"


def site_number(name: str) -> int:
    """The site of a layer's name."""
    plain = name.strip().lower()
    if plain in ("words", "embeddings"):
        return ("words", "embeddings").index(plain)
    number = plain.removeprefix("block").strip()
    if not plain.startswith("block") or not number.isdecimal() or int(number) < 1:
        raise SiteError(f"no layer {name!r}; give words, embeddings, or a block such as 'block 3'")
    return int(number) + 1


def as_site(layer: Any) -> int:
    """The site that is meant by its number or by its layer's name."""
    if isinstance(layer, str):
        return site_number(layer)
    try:
        return index(layer)
    except TypeError:
        raise SiteError(
            f"no layer {layer!r:.60}; give the number of a site, or a name such as 'block 3'"
        ) from None


def row_of(layer: Any, sites: Sequence[int]) -> int:
    """The row of a record with these sites that holds a layer's scores."""
    site = as_site(layer)
    if site not in sites:
        given = layer if isinstance(layer, str) else f"site {site}"
        raise SiteError(f"no scores at {given}; this record has {_listed(sites)}")
    return sites.index(site)


def _listed(sites: Sequence[int]) -> str:
    """Names of layers with their numbers as sites; a long run by its ends."""
    named = [f"{site_name(site)} ({site})" for site in sites]
    run = len(sites) > 4 and list(sites) == list(range(sites[0], sites[-1] + 1))
    return f"{named[0]} to {named[-1]}" if run else ", ".join(named)


def row_name(name: str) -> str:
    """NAME@SITE, the name of a row or a setting, with the name of the layer: "gradcam, block 3"."""
    head, at, site = name.rpartition("@")
    return f"{head}, {site_name(int(site))}" if at and site.isdecimal() else name


def in_layers(message: str) -> str:
    """A message with "block 3" for "site 4", and the same for lists of sites."""
    message = re.sub(r"\b(?:(unknown|no) site|sites?) (\d+|[\[(][\d, ]+[\])])", _layers, message)
    return re.sub(r"\bsites\b", "layers", message)


def _layers(found: re.Match[str]) -> str:
    names = ", ".join(site_name(int(number)) for number in re.findall(r"\d+", found[2]))
    return f"{found[1]} layer {names}" if found[1] else names
