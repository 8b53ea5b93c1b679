"""Programs that compare methods and measure times; ``botorch_transfer`` never imports them."""

import os

# Without this cache on disk, measured priors are computed. Worker processes inherit the variable.
os.environ["BOTORCH_TRANSFER_CACHE"] = "off"
