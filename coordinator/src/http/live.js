// Reads the page again when the server says that something changed, and puts the new content in place.
"use strict";
const place = document.body.dataset.live;
if (place && window.EventSource) {
  const state = document.getElementById("live");
  const source = new EventSource(place);
  let busy = false;
  source.onopen = () => { state.textContent = "live"; };
  source.onerror = () => { state.textContent = "not connected; trying again"; };
  source.onmessage = async () => {
    if (busy) return;
    busy = true;
    try {
      const answer = await fetch(location.href, { headers: { accept: "text/html" } });
      if (answer.ok) {
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        const fresh = page.getElementById("content"), old = document.getElementById("content");
        const focus = document.activeElement && document.activeElement.id;
        if (fresh && old) old.replaceWith(document.adoptNode(fresh));
        if (focus && document.getElementById(focus)) document.getElementById(focus).focus();
      }
    } catch (_) {
      state.textContent = "not connected; trying again";
    } finally {
      busy = false;
    }
  };
}
