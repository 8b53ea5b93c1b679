"""A headless Chromium that tests talk to through pipes, if one is installed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)

#: Finds what does not fit into its box.
CUT_OFF = """(() => {
  const whole = document.documentElement, width = whole.clientWidth, found = [];
  if (whole.scrollWidth > width) found.push("the page is wider than the window");
  for (const node of document.querySelectorAll("main > *, section > *, .card, .card *")) {
    const box = node.getBoundingClientRect();
    if (box.width && (box.right > width + 1 || box.left < -1)) found.push(node.outerHTML);
  }
  for (const svg of document.querySelectorAll(".main-svg")) {
    const outer = svg.getBoundingClientRect();
    for (const text of svg.querySelectorAll("text")) {
      const box = text.getBoundingClientRect();
      if (box.width && (box.right > outer.right + 1 || box.left < outer.left - 1 ||
          box.bottom > outer.bottom + 1 || box.top < outer.top - 1))
        found.push("text: " + text.textContent);
    }
  }
  return found;
})()"""


class Browser:
    """A browser with one page; use it in a ``with`` statement."""

    def __enter__(self) -> Browser:
        (to_read, self._out), (self._in, to_write) = os.pipe(), os.pipe()
        self._folder = TemporaryDirectory(ignore_cleanup_errors=True)

        def connect() -> None:  # Chromium reads from descriptor 3, and writes to 4
            spare = [os.dup2(end, place) for end, place in ((to_read, 103), (to_write, 104))]
            for end, place in zip(spare, (3, 4), strict=True):
                os.dup2(end, place)

        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        options += ["--remote-debugging-pipe", f"--user-data-dir={self._folder.name}"]
        self._process = subprocess.Popen(
            [str(CHROMIUM), *options],
            preexec_fn=connect,
            close_fds=False,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self._rest, self._number, self.events = b"", 0, list[dict[str, Any]]()
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        return self

    def __exit__(self, *args: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._in)
        os.close(self._out)
        self._folder.cleanup()

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            part = os.read(self._in, 1 << 20)
            assert part, "the browser has ended"
            self._rest += part
        message, self._rest = self._rest.split(b"\0", 1)
        return json.loads(message)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Calls a method of the DevTools protocol, and keeps the events until its answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while (answer := self._read()).get("id") != self._number:
            self.events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def open(self, path: Path, width: int, dark: bool = False) -> None:
        """Opens a file in a window of some width, and waits until all is drawn."""
        self.events.clear()
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=path.resolve().as_uri())
        wait = (
            "new Promise(done => { const ask = () => document.body && document.body.dataset.drawn"
        )
        wait += " ? requestAnimationFrame(() => done(1)) : setTimeout(ask, 50); "
        self.run(wait + "ask(); setTimeout(() => done(0), 20000); })")

    def run(self, script: str) -> Any:
        """The value of JavaScript."""
        found = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        return found["result"].get("value")

    def errors(self) -> list[str]:
        """Errors of scripts, what was refused, and requests that leave the machine."""
        found = []
        for event in self.events:
            about = event.get("params", {})
            if event.get("method") == "Runtime.exceptionThrown":
                found.append(json.dumps(about["exceptionDetails"])[:500])
            elif event.get("method") == "Log.entryAdded" and about["entry"]["level"] == "error":
                found.append(about["entry"]["text"])
            elif event.get("method") == "Network.requestWillBeSent":
                url = about["request"]["url"]
                found += [] if url.startswith(("file:", "data:", "blob:")) else [url]
        return found
