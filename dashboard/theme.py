"""Streamlit's theme options, light and dark."""

from __future__ import annotations

from collections.abc import Mapping

# Line colours stay distinguishable for colour-blind people, with at least 3:1 contrast to the page.
_LIGHT: Mapping[str, object] = {
    "primaryColor": "#0072B2",
    "backgroundColor": "#FFFFFF",
    "secondaryBackgroundColor": "#F4F6F8",
    "textColor": "#0B0E12",
    "borderColor": "#D9DEE4",
    "redColor": "#C0341D",
    "orangeColor": "#B35900",
    "greenColor": "#00795B",
    "blueColor": "#0072B2",
    "chartCategoricalColors": [
        "#0072B2",
        "#D55E00",
        "#009E73",
        "#B8488F",
        "#1B1F24",
        "#8E5229",
        "#6B6F76",
        "#8C510A",
    ],
}
_DARK: Mapping[str, object] = {
    "primaryColor": "#56B4E9",
    "backgroundColor": "#0F1317",
    "secondaryBackgroundColor": "#1A2027",
    "textColor": "#E6EAEE",
    "borderColor": "#2C343D",
    "redColor": "#FF8A70",
    "orangeColor": "#F0A93B",
    "greenColor": "#3CCBA3",
    "blueColor": "#56B4E9",
    "chartCategoricalColors": [
        "#56B4E9",
        "#F58231",
        "#2CCF9F",
        "#E39CC7",
        "#F2C14E",
        "#8AB6FF",
        "#A6ADB5",
        "#C79A6B",
    ],
}

THEME_OPTIONS: Mapping[str, object] = {
    "theme.baseRadius": "0.5rem",
    "theme.baseFontSize": 15,
    "theme.metricValueFontSize": "1.5rem",
    "theme.headingFontSizes": ["1.25rem", "1rem", "1rem", "1rem", "1rem", "1rem"],
    "theme.headingFontWeights": 600,
    "theme.paddingTop": "1.6rem",
    "theme.linkUnderline": False,
    **{f"theme.light.{name}": value for name, value in _LIGHT.items()},
    **{f"theme.dark.{name}": value for name, value in _DARK.items()},
}
"""The browser's own setting decides which of the two is shown."""


def _css_name(name: str) -> str:
    return "--st-" + "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in name)


_COLOURS = (
    f"{_css_name(name)}:light-dark({value},{_DARK[name]})"
    for name, value in _LIGHT.items()
    if name.endswith("Color")
)
# Streamlit derives the colour of links from the primary one.
_MORE = "--st-base-radius:0.5rem;--st-link-color:light-dark(hsl(202 100% 20%),hsl(202 77% 78%))"
THEME_STYLE = f":root{{font-size:15px}}.telemetry-first{{{_MORE};{';'.join(_COLOURS)}}}"
"""What Streamlit makes of these options, for what is shown before it runs."""
