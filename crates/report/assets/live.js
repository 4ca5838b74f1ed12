// Keeps the page of a file that is being written: the server sends the parts that changed, in the order of the page.
"use strict";
(() => {
  const line = document.getElementById("live");
  const say = (text) => { if (line.textContent !== text) line.textContent = text; };
  const follows = line.textContent;
  const made = (html) => {
    const shell = document.createElement("template");
    shell.innerHTML = html;
    return shell.content.firstElementChild;
  };
  // Lists that were opened stay open.
  const keepOpen = (before, after) => {
    const [old, now] = [before, after].map((part) => [...part.querySelectorAll("details")]);
    now.forEach((details, at) => { details.open = old[at]?.open ?? false; });
  };
  const put = ({ order, changed }) => {
    const there = new Map([...document.querySelectorAll("[data-part]")].map((part) => [part.dataset.part, part]));
    const parts = order.map((key) => {
      const before = there.get(key);
      if (changed[key] === undefined) return before;
      const after = made(changed[key]);
      if (before) { keepOpen(before, after); before.replaceWith(after); }
      return after;
    }).filter(Boolean);
    const kept = new Set(parts);
    there.forEach((part) => { if (!kept.has(part)) part.remove(); });
    const main = document.querySelector("main");
    parts.filter((part) => part.localName === "section").forEach((part, at) => {
      if (main.children[at] !== part) main.insertBefore(part, main.children[at] ?? null);
    });
    document.body.dataset.updates = String(Number(document.body.dataset.updates ?? 0) + 1);
    document.dispatchEvent(new CustomEvent("parts"));
  };
  const source = new EventSource(line.dataset.events);
  source.addEventListener("open", () => say(follows));
  source.addEventListener("parts", (event) => put(JSON.parse(event.data)));
  source.addEventListener("end", () => {
    source.close();
    say("The file is not being written any more.");
  });
  source.addEventListener("error", () => say(source.readyState === EventSource.CLOSED
    ? "The server does not send what changes: load the page again."
    : "The connection to the server is lost; it is tried again."));
})();
