#!/usr/bin/env python3
"""looks.py FOLDER PAGE... - opens pages in Chromium at the width of a phone and of a desktop, light and dark.

Fails if a page is wider than its window, if an element is cut off outside of a box that scrolls, or if such a box has
to scroll on a desktop. Details are open and all rows are shown meanwhile. Screenshots go to
FOLDER/NAME-DEVICE-SCHEME.png, their tops to FOLDER/NAME.png. It speaks Chromium's protocol through a pipe, so it needs
no package of Python."""
import base64
import json
import os
import pathlib
import subprocess
import sys

WIDTHS = {"phone": 390, "desktop": 1280}
MOST_HEIGHT, TOP_HEIGHT = 2600, 1300  # of screenshots

CHECK = """(function () {
  function scrolls(e) {
    for (e = e.parentElement; e; e = e.parentElement)
      if (/auto|scroll/.test(getComputedStyle(e).overflowX)) return true;
    return false;
  }
  function name(e) { return e.tagName.toLowerCase() + (e.getAttribute('class') ? '.' + e.getAttribute('class') : ''); }
  var wrong = [], root = document.documentElement, closed = document.querySelectorAll('details:not([open])');
  var all = document.getElementById('all'), height = root.scrollHeight, footer = document.querySelector('footer');
  if (all && !all.checked) all.click(); else all = null;
  [].forEach.call(closed, function (e) { e.open = true; });
  if (root.scrollWidth > innerWidth) wrong.push('the page is ' + root.scrollWidth + ' px wide');
  [].forEach.call(document.querySelectorAll('body *'), function (e) {
    var box = e.getBoundingClientRect();
    if (box.width && box.right > innerWidth + 0.5 && !scrolls(e)) wrong.push(name(e) + ' ends at ' + box.right);
    if (getComputedStyle(e).overflowX === 'hidden' && e.scrollWidth > e.clientWidth) wrong.push(name(e) + ' is cut off');
  });
  if (innerWidth > 1000)
    [].forEach.call(document.querySelectorAll('.scroll'), function (e) {
      if (e.scrollWidth > e.clientWidth)
        wrong.push(name(e) + ' scrolls: ' + e.scrollWidth + ' px in ' + e.clientWidth);
    });
  if (all) all.click();
  [].forEach.call(closed, function (e) { e.open = false; });
  return JSON.stringify({wrong: wrong.slice(0, 5), height: height,
    top: footer ? footer.getBoundingClientRect().top + scrollY : document.body.offsetHeight});
})()"""


class Browser:
    """A Chromium that reads commands on descriptor 3 and answers on 4, each ended by a zero byte."""

    def __init__(self, program):
        ours, theirs = os.pipe(), os.pipe()
        self.to, self.answers, self.number = ours[1], theirs[0], 0
        command = [program, "--headless=new", "--no-sandbox", "--disable-gpu",
                   "--remote-debugging-pipe", "--no-first-run", "about:blank"]

        def place():
            os.dup2(ours[0], 103)
            os.dup2(theirs[1], 104)
            os.dup2(103, 3)
            os.dup2(104, 4)

        self.process = subprocess.Popen(command, preexec_fn=place, close_fds=False, stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(ours[0])
        os.close(theirs[1])
        self.rest, self.session = b"", None
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.ask("Page.enable")

    def read_message(self):
        while b"\0" not in self.rest:
            more = os.read(self.answers, 1 << 16)
            if not more:
                raise RuntimeError("chromium has ended")
            self.rest += more
        message, self.rest = self.rest.split(b"\0", 1)
        return json.loads(message)

    def ask(self, method, **params):
        self.number += 1
        command = {"id": self.number, "method": method, "params": params}
        if self.session:
            command["sessionId"] = self.session
        os.write(self.to, json.dumps(command).encode() + b"\0")
        while True:
            message = self.read_message()
            if message.get("id") == self.number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']['message']}")
                return message["result"]

    def wait_for(self, event):
        while self.read_message().get("method") != event:
            pass

    def show(self, page, width, height, scheme):
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500)
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.ask("Page.navigate", url=page.resolve().as_uri())
        self.wait_for("Page.loadEventFired")

    def check(self):
        return json.loads(self.ask("Runtime.evaluate", expression=CHECK)["result"]["value"])

    def shoot(self, file, width, height):
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        file.write_bytes(base64.b64decode(self.ask("Page.captureScreenshot", clip=clip,
                                                   captureBeyondViewport=True)["data"]))

    def close(self):
        self.session = None
        try:
            self.ask("Browser.close")
        except RuntimeError:
            pass
        self.process.wait()


def main():
    folder, pages = pathlib.Path(sys.argv[1]), [pathlib.Path(p) for p in sys.argv[2:]]
    browser, wrong = Browser("chromium"), 0
    for page in pages:
        for device, width in WIDTHS.items():
            for scheme in ("light", "dark"):
                browser.show(page, width, 900, scheme)
                found = browser.check()
                browser.shoot(folder / f"{page.stem}-{device}-{scheme}.png", width, min(found["height"], MOST_HEIGHT))
                if (device, scheme) == ("desktop", "light"):
                    browser.shoot(folder / f"{page.stem}.png", width, min(found["top"], TOP_HEIGHT))
                for text in found["wrong"]:
                    print(f"{page.name}, {device}, {scheme}: {text}")
                wrong += len(found["wrong"])
    browser.close()
    print(f"looks: {len(pages)} pages, {wrong} problems")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
