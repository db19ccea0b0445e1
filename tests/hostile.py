"""Text that tries to break what shows it."""

HOSTILE = (
    "<script>alert(1)</script>",
    "\"><img src=x onerror='alert(2)'>",
    "</style></title><b onclick=alert(3)>",
    "{{ 7 * 7 }}{% raw %}",
    "$x_{$ \\frac{1}{0} $$",
    "line\nbreak\ttab\x00\x1b[31m\x7f\x85",
    "\u202eevil\u202c\u2066\u200f",
    "\ud800",
    "好电影",
    "😀👩\u200d💻",
    "שלום عربى",
    "e\u0301\u0323" * 3,
    "x" * 500,
    "",
    " ",
)
"""tokens"""
FORBIDDEN = "\x00\x1b\x7f\x85\u202e\u202c\u2066\u200f\ud800"
"""characters that must not be in a picture or page"""
