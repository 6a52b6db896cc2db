// Reads the page again when the server says that something changed, and brings what differs into the page on screen.
"use strict";
const place = document.body.dataset.live;
const state = document.getElementById("live");
// Until the server is tried again that refused the stream; a stream that was cut off comes back by itself.
const PAUSE = 5000;
// Ages grow while nothing happens.
const OLD = 30000;
let reading = false, again = false;

// Makes `old` like `fresh`. What is the same stays: the focus, what is selected, scrolled or being typed.
function renew(old, fresh) {
  if (old.isEqualNode(fresh) || old.nodeName === "FORM") return;
  if (!(old instanceof Element)) { old.data = fresh.data; return; }
  for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  const wanted = new Set([...fresh.children].map((child) => child.id).filter(Boolean));
  for (const child of [...old.children]) if (child.id && !wanted.has(child.id)) child.remove();
  const named = new Map([...old.children].filter((child) => child.id).map((child) => [child.id, child]));
  let at = old.firstChild;
  for (const child of [...fresh.childNodes]) {
    const alike = at && at.nodeName === child.nodeName && !at.id;
    const same = child.id ? named.get(child.id) : alike ? at : null;
    if (same && same !== at) old.insertBefore(same, at);
    if (same) renew(same, child);
    else old.insertBefore(document.adoptNode(child), at);
    at = same ? same.nextSibling : at;
  }
  while (at) { const next = at.nextSibling; at.remove(); at = next; }
}

async function read() {
  again = true;
  if (reading || document.hidden) return;
  reading = true;
  try {
    while (again) {
      again = false;
      const answer = await fetch(location.href, { headers: { accept: "text/html" } });
      if (!answer.ok) throw new Error(answer.statusText);
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      renew(document.getElementById("content"), page.getElementById("content"));
      state.textContent = "live";
    }
  } catch {
    state.textContent = "not connected; trying again";
  } finally {
    reading = false;
  }
}

function watch() {
  const source = new EventSource(place);
  source.onopen = () => { state.textContent = "live"; };
  source.onmessage = read;
  source.onerror = () => {
    state.textContent = "not connected; trying again";
    if (source.readyState === EventSource.CLOSED) setTimeout(watch, PAUSE);
  };
}

if (place && window.EventSource) {
  watch();
  setInterval(read, OLD);
  // nothing is read for a page that nobody sees
  document.addEventListener("visibilitychange", () => { if (again) read(); });
}
