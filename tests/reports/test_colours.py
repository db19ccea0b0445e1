"""The colours: readable, straight in lightness, and apart for people who see fewer of them."""

from dataclasses import replace

import numpy as np
import pytest

from masklens.reports.colours import RAMPS, colours, hexadecimal, ink, scale
from masklens.reports.fragment import palette
from records import make

THEMES = sorted(RAMPS)


def linear(colour):
    """One channel at a time, as the standard writes it."""
    return np.array([c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour])


def oklab(colour):
    """From sRGB to OKLab, the other way round than the package."""
    to_cones = np.array(
        [
            [0.4122214708, 0.5363325363, 0.0514459929],
            [0.2119034982, 0.6806995451, 0.1073969566],
            [0.0883024619, 0.2817188376, 0.6299787005],
        ]
    )
    to_lab = np.array(
        [
            [0.2104542553, 0.7936177850, -0.0040720468],
            [1.9779984951, -2.4285922050, 0.4505937099],
            [0.0259040371, 0.7827717662, -0.8086757660],
        ]
    )
    return to_lab @ np.cbrt(to_cones @ linear(colour))


def contrast(first, second):
    one, two = sorted(
        float(linear([int(c[i : i + 2], 16) / 255 for i in (1, 3, 5)]) @ [0.2126, 0.7152, 0.0722])
        for c in (first, second)
    )
    return (two + 0.05) / (one + 0.05)


@pytest.mark.parametrize("theme", THEMES)
def test_text_is_readable_on_every_colour(theme):
    assert min(contrast(background, text) for background, text in palette(theme).values()) >= 4.5


def test_ink_is_the_better_of_black_and_white():
    for grey in np.linspace(0, 1, 52):
        colour = np.full(3, grey)
        other = {"#000000": "#ffffff", "#ffffff": "#000000"}[ink(colour)]
        drawn = hexadecimal(colour)
        assert contrast(drawn, ink(colour)) >= contrast(drawn, other) - 0.1


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize(("sign", "signed"), [(1, True), (-1, True), (1, False)])
def test_equal_steps_of_score_are_equal_steps_of_lightness(theme, sign, signed):
    lightness = [oklab(colour)[0] for colour in colours(sign * np.linspace(0, 1, 21), signed, theme)]
    steps = np.diff(lightness)
    assert abs(steps.mean()) > 0.015
    np.testing.assert_allclose(steps, steps.mean(), rtol=0.15)


# What is left of linear red, green and blue with no red cones and with no green cones (Vienot et al. 1999).
DICHROMATS = {
    "no red cones": [[0.11238, 0.88762, 0], [0.11238, 0.88762, 0], [0.00401, -0.00401, 1]],
    "no green cones": [[0.29275, 0.70725, 0], [0.29275, 0.70725, 0], [-0.02234, 0.02234, 1]],
}


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("eye", DICHROMATS)
@pytest.mark.parametrize("share", [0.5, 1.0])
def test_for_and_against_stay_apart_for_colour_blind_people(theme, eye, share):
    seen = [
        oklab(encode(np.array(DICHROMATS[eye]) @ linear(colours(np.array(sign * share), True, theme))))
        for sign in (-1, 1)
    ]
    assert np.linalg.norm(seen[0] - seen[1]) > 0.12


def encode(light):
    light = np.clip(light, 0, 1)
    return np.where(light <= 0.0031308, 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055)


def test_signed_scores_are_shares_of_the_largest():
    shown = scale(make(scores=np.array([[0.0, 4.0, -1.0], [0.5, -2.0, 0.0]])), per_site=False)
    assert shown.signed
    assert shown.strongest == 4.0
    np.testing.assert_allclose(shown.values, [[0, 1, -0.25], [0.125, -0.5, 0]])


@pytest.mark.parametrize("per_site", [None, True])
def test_each_layer_has_its_own_largest(per_site):
    shown = scale(make(scores=np.array([[0.0, 4.0, -1.0], [0.5, -2.0, 0.0]])), per_site)
    assert shown.strongest is None and shown.largest == (4.0, 2.0)
    np.testing.assert_allclose(shown.values, [[0, 1, -0.25], [0.25, -1, 0]])


def test_one_layer_has_one_scale_in_any_case():
    assert scale(make(scores=np.array([[0.0, 4.0, -1.0]])), per_site=True).strongest == 4.0


def test_probabilities_are_drawn_as_they_are():
    keep = [[0.1, 0.4, 0.2], [0.0, 0.01, 0.0]]
    shown = scale(replace(make(scores=np.array(keep)), merge="max"))
    assert not shown.signed
    assert shown.strongest == 1.0 and shown.largest == (1.0, 1.0)
    np.testing.assert_allclose(shown.values, keep, rtol=1e-6)


@pytest.mark.parametrize("per_site", [False, True])
def test_no_scores_and_scores_that_are_not_finite(per_site):
    assert not scale(make(scores=np.zeros((2, 3))), per_site).values.any()
    shown = scale(make(scores=np.array([[np.nan, 2.0, -np.inf]])), per_site)
    assert not shown.signed
    np.testing.assert_array_equal(shown.values, [[np.nan, 1.0, np.nan]])
