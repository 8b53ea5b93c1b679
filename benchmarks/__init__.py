"""Studies and timings; the package never imports them."""
