"""The pages of ``odradek monitor`` in a headless Chromium: ``python -m bench.monitor_pages``.

Each page is opened five times, with the processor as it is and slowed fourfold, each time without a cache. The figures
are medians of the first contentful paint, the bytes that were transferred, and the longest task of the browser while
the page renews itself. They need the extra ``browser`` and a Chromium.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from playwright.sync_api import Browser, sync_playwright

from bench.monitor import Monitored, fill, topic_of
from odradek.testing.process import BrokerProcess

RUNS, UPDATES, SLOWED = 5, 4, 4
_UPDATE = """() => new Promise((done) => {
  document.addEventListener("odradek:renewed", () => setTimeout(done, 300), { once: true });
  htmx.trigger(document.getElementById("view"), "every");
})"""
"""The request of the page's own timer, without its ten seconds."""
_WATCH = """
window.longTasks = [];
new PerformanceObserver((list) => {
  for (const one of list.getEntries()) window.longTasks.push([one.startTime, one.duration]);
}).observe({ type: "longtask", buffered: true });
"""


def visit(browser: Browser, url: str, slowed: int) -> dict[str, float]:
    """Opens a page in a new profile, and lets it renew itself."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.add_init_script(_WATCH)
    session = context.new_cdp_session(page)
    sizes: list[float] = []
    session.on("Network.loadingFinished", lambda event: sizes.append(event["encodedDataLength"]))
    session.send("Network.enable")
    session.send("Emulation.setCPUThrottlingRate", {"rate": slowed})
    page.goto(url, wait_until="networkidle")
    paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    transferred = sum(sizes)
    page.wait_for_function("window.htmx !== undefined && !document.querySelector('.controls').hidden")
    began = page.evaluate("performance.now()")
    for _ in range(UPDATES):
        page.evaluate(_UPDATE)
    tasks: list[Any] = page.evaluate("window.longTasks")
    context.close()
    longest = max((duration for start, duration in tasks if start >= began), default=0.0)
    return {"paint_ms": paint, "transferred_kb": transferred / 1e3, "update_task_ms": longest}


def measure(url: str) -> None:
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    options: dict[str, Any] = {"executable_path": path} if path else {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(args=["--no-sandbox"] if os.geteuid() == 0 else [], **options)
        name = f"{topic_of(0)}-0"
        for page in ("/", f"/group?name={name}", f"/topic?name={topic_of(0)}"):
            for slowed in (1, SLOWED):
                visits = [visit(browser, url + page, slowed) for _ in range(RUNS)]
                found = {key: [round(one[key], 1) for one in visits] for key in visits[0]}
                medians = {key: round(median(values), 1) for key, values in found.items()}
                print(json.dumps({"page": page, "slowed": slowed, **medians, "worst": max(found["update_task_ms"])}))
        browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.monitor_pages", description=__doc__)
    parser.add_argument("--groups", type=int, default=1_000, help="groups of 100 partitions (default 1,000)")
    parser.add_argument("--url", help="a running monitor, in place of one of its own")
    args = parser.parse_args()
    print(f"load average at the start: {os.getloadavg()}", flush=True)
    if args.url:
        measure(args.url)
        return
    work = Path(tempfile.mkdtemp(prefix="odradek-pages-"))
    broker = BrokerProcess(work / "broker")
    broker.start()
    try:
        fill(broker.bootstrap_servers, args.groups, 3)
        monitor = Monitored(broker.bootstrap_servers, "--interval", "5s")
        monitor.wait_until_complete()
        time.sleep(12)  # the plots have some polls
        measure(monitor.url)
        monitor.end()
    finally:
        broker.kill()
        shutil.rmtree(work)
    print(f"load average at the end: {os.getloadavg()}")


if __name__ == "__main__":
    main()
