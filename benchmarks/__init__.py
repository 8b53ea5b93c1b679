"""Studies and timings; the package never imports them."""

import os

# What is measured is computed, and not found on disk; workers inherit it.
os.environ["BOTORCH_TRANSFER_CACHE"] = "off"
