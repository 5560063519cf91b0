// Puts what changed into the page. The server has escaped it; a page without this script loads itself again.
"use strict";

const waiting = new Map();
const connection = document.getElementById("connection");

function put(id, html) {
  const place = document.getElementById(id);
  if (!place) return;
  const focused = place.contains(document.activeElement) ? document.activeElement : null;
  const link = focused && focused.getAttribute("href");
  place.innerHTML = html;
  if (link) [...place.querySelectorAll("a")].find((a) => a.getAttribute("href") === link)?.focus();
}

// What someone marks to copy it stays as it is until it is let go.
function isMarked(id) {
  const marked = getSelection();
  const place = document.getElementById(id);
  return place && !marked.isCollapsed && marked.containsNode(place, true);
}

const events = new EventSource("/live");
events.onmessage = (event) => {
  for (const [id, html] of Object.entries(JSON.parse(event.data))) waiting.set(id, html);
  for (const [id, html] of waiting) {
    if (isMarked(id)) continue;
    waiting.delete(id);
    put(id, html);
  }
};
events.onopen = () => {
  document.body.classList.remove("stale");
  connection.textContent = " live";
};
events.onerror = () => {
  document.body.classList.add("stale");
  connection.textContent = " the console does not answer; trying again";
};
