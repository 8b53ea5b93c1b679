"""Saves the pictures of the page *Transfer in ten minutes*: ``python docs/pictures.py``.

It runs the code of that page, which saves its pictures where it runs, in ``docs/pictures``.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import matplotlib.pyplot as plt

HERE = Path(__file__).parent

if __name__ == "__main__":
    page = (HERE / "ten_minutes.md").read_text(encoding="utf-8")
    (HERE / "pictures").mkdir(exist_ok=True)
    os.chdir(HERE / "pictures")
    plt.switch_backend("agg")
    plt.rcParams["savefig.dpi"] = 110
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(compile(block, "ten_minutes.md", "exec"), names)
